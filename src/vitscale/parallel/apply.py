"""Parallelism as functions over an untouched model. The order lives here once:
tensor / sequence -> float8 (parallel.float8) -> activation checkpointing -> compile -> ddp / fsdp.

In: a plain timm Vision Transformer on its device. Out: the module that the engine calls. DeepSpeed wraps and compiles
by itself and gets only the first steps.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitscale.config.decide import Decisions
from vitscale.config.run import PerformanceConfig

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(model: nn.Module, performance: PerformanceConfig, decisions: Decisions) -> None:
    """Activation checkpointing, then compile, both in place so that parameter names stay timm's."""
    checkpoint_activations(model, performance)
    if decisions.fast.compile:
        compile_in_place(model, decisions.engine)


def checkpoint_activations(model: nn.Module, performance: PerformanceConfig) -> None:
    """Recompute blocks in backward, if asked; timm's own works under ZeRO-3, where torch's non-reentrant one fails."""
    if performance.checkpointing:
        model.set_grad_checkpointing(True)  # type: ignore[operator]


def compile_in_place(model: nn.Module, engine: str) -> None:
    """The whole model where it is one graph; block by block where FSDP2's hooks between them would break it."""
    if engine in ("single", "ddp"):
        model.compile(dynamic=False)
        return
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(dynamic=False)


def data_parallel(model: nn.Module, decisions: Decisions, mesh: DeviceMesh | None) -> nn.Module:
    """Wrap for the native engines; `single` stays as it is."""
    if decisions.engine == "single":
        return model
    assert mesh is not None
    if decisions.engine == "ddp":
        return _ddp(model, decisions, mesh)
    return _fsdp(model, decisions, mesh)


def _ddp(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> nn.Module:
    device = next(model.parameters()).device
    # A patch embedding of one channel has a dimension of size 1, whose stride means nothing but differs.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=mesh.get_group(),
        gradient_as_bucket_view=True,
    )
    if decisions.precision.params == "fp32" and decisions.precision.reduce == "bf16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


def _fsdp(model: nn.Module, decisions: Decisions, mesh: DeviceMesh) -> nn.Module:
    _, params, reduce = decisions.precision
    policy = MixedPrecisionPolicy()
    if params != "fp32":
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[params], reduce_dtype=DTYPES[reduce])
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # in place: the model becomes an FSDPModule as well
    return model
