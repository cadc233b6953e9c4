"""DeepSpeed as its getting-started page has it: initialize with a JSON config, then engine, backward, step."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
from torch.nn import functional as F

from vitscale.bench.case import Case, Spec
from vitscale.distributed import World


def build(case: Case, spec: Spec, world: World) -> Callable[[], None]:
    """One call is one update of all ranks. ZeRO's defaults, but clipping off, as in every other row."""
    import deepspeed

    device = world.device
    low = case.precision[0] == "bf16"
    model = timm.create_model(
        spec.model,
        img_size=spec.img_size,
        in_chans=spec.in_chans,
        num_classes=spec.num_classes,
        **spec.model_kwargs,
    )
    config = {
        "train_micro_batch_size_per_gpu": spec.micro_batch_size,
        "bf16": {"enabled": low},
        "optimizer": {"type": "AdamW", "params": {"lr": spec.lr, "torch_adam": device.type == "cpu"}},
        "zero_optimization": {"stage": case.zero_stage},
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    dtype = torch.bfloat16 if low else torch.float32
    shape = (spec.micro_batch_size, spec.in_chans, spec.img_size, spec.img_size)
    images = torch.randn(shape, device=device, dtype=dtype)
    targets = torch.randint(spec.num_classes, (spec.micro_batch_size,), device=device)

    def step() -> None:
        loss = F.cross_entropy(engine(images).float(), targets)
        engine.backward(loss)
        engine.step()

    return step
