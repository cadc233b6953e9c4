"""DistributedDataParallel around a timm model, as its tutorial has it: AdamW, autocast, optionally torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from vitscale.bench.case import Case, Spec
from vitscale.distributed import World


def build(case: Case, spec: Spec, world: World) -> Callable[[], None]:
    """One call is one update of all ranks."""
    device = world.device
    model = timm.create_model(
        spec.model,
        img_size=spec.img_size,
        in_chans=spec.in_chans,
        num_classes=spec.num_classes,
        **spec.model_kwargs,
    ).to(device)
    wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=spec.lr, fused=device.type == "cuda")
    forward = torch.compile(wrapped) if case.compile else wrapped
    images = torch.randn(spec.micro_batch_size, spec.in_chans, spec.img_size, spec.img_size, device=device)
    targets = torch.randint(spec.num_classes, (spec.micro_batch_size,), device=device)
    autocast = case.precision[0] == "bf16"

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(forward(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
