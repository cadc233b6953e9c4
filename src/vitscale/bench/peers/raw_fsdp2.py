"""FSDP2 over a timm model, as its tutorial has it: each block, then the whole; bf16 parameters, fp32 reduction."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

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
    policy = MixedPrecisionPolicy()
    if case.precision[0] == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = world.mesh()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr, fused=device.type == "cuda")
    images = torch.randn(spec.micro_batch_size, spec.in_chans, spec.img_size, spec.img_size, device=device)
    targets = torch.randint(spec.num_classes, (spec.micro_batch_size,), device=device)

    def step() -> None:
        loss = F.cross_entropy(model(images).float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
