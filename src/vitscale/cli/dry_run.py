"""`vitscale train --dry-run`: memory, updates and time of a run, from closed forms and the opened data.

In: a checked Plan. Out: rows to print. The data is opened (its errors show here too), nothing is trained or written.
Time is a lower bound, matrix products alone, and blank where the device's peak is not known.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vitscale.estimate.memory import activation_bytes, state_of
from vitscale.estimate.vit import ViTShape, num_parameters, shape_of, training_flops
from vitscale.hardware import peak_flops
from vitscale.observers.progress import span

if TYPE_CHECKING:
    from vitscale.cli.preflight import Plan
    from vitscale.data.images import Splits

UNKNOWN = "not known"


def rows(plan: Plan) -> list[tuple[str, str]]:
    """Name and value of everything that is known of the run before it begins."""
    splits, shape = _open(plan)
    decisions = plan.decisions
    engine = decisions.engine + (f" zero_stage {decisions.zero_stage}" if decisions.engine == "deepspeed" else "")
    updates, per_epoch = _updates(plan, splits)
    count = num_parameters(shape)
    micro, accum, total = decisions.batch
    sizes = f"{shape.img_size} px, patch {shape.patch_size}, {_count(count)} parameters"
    return [
        (
            "model",
            f"{plan.config.model.name}, {sizes}",
        ),
        ("data", f"{len(splits.train):,} train and {len(splits.val):,} val images, {len(splits.classes)} classes"),
        ("engine", f"{engine}, {decisions.world_size} process(es) on {plan.device}"),
        ("precision", f"{decisions.precision.meaning} ({'/'.join(decisions.precision)})"),
        ("batch", f"{micro} x {accum} x {decisions.world_size} = {total} images per update"),
        ("updates", f"{updates:,} ({per_epoch:,} per epoch)"),
        *_memory(plan, shape, count),
        ("time", _time(plan, shape, min(updates * total, updates * len(splits.train) / per_epoch))),
        ("run folder", f"{plan.out} (nothing written)"),
    ]


def _open(plan: Plan) -> tuple[Splits, ViTShape]:
    from vitscale.data.sources import open_splits

    model = plan.config.model
    splits = open_splits(
        plan.config.data,
        img_size=shape_of(model).img_size,
        in_chans=model.in_chans,
        num_classes=model.num_classes,
        seed=plan.config.train.seed,
    )
    return splits, shape_of(model, model.num_classes or len(splits.classes))


def _updates(plan: Plan, splits: Splits) -> tuple[int, int]:
    total = plan.decisions.batch.global_batch_size
    whole, rest = divmod(len(splits.train), total)
    per_epoch = whole + (1 if rest and not plan.config.data.drop_last else 0)
    train = plan.config.train
    limits = [train.epochs * per_epoch if train.epochs else None, train.max_updates]
    return min(limit for limit in limits if limit is not None), per_epoch


def _memory(plan: Plan, shape: ViTShape, count: int | None) -> list[tuple[str, str]]:
    if count is None:
        return [("memory", f"{UNKNOWN}: this model's blocks are not standard")]
    config, decisions = plan.config, plan.decisions
    state = state_of(config, decisions, count)
    activations = activation_bytes(
        shape,
        max(decisions.shares),
        compute=decisions.precision.compute,
        params=decisions.precision.params,
        checkpointing=config.performance.checkpointing,
    )
    assert activations is not None
    text = f"about {_gib(state.total + activations)} per process: model state {_gib(state.total)}, activations "
    text += _gib(activations)
    available = min(plan.facts.cuda_total_bytes, default=None)
    if available is not None and state.total + activations > available:
        text += f"; more than the {_gib(available)} of the GPU: lower train.micro_batch_size"
    return [("memory", text)]


def _time(plan: Plan, shape: ViTShape, images: float) -> str:
    flops = training_flops(shape)
    if flops is None:
        return f"{UNKNOWN}: this model's blocks are not standard"
    size = plan.decisions.world_size
    if plan.device == "cpu":
        rate, what = _cpu_rate(), "the CPU's rate measured now"
    else:
        peak = peak_flops(plan.facts.cuda_names[0], plan.decisions.precision.compute)
        if peak is None:
            return f"{UNKNOWN}: no peak is listed for a {plan.facts.cuda_names[0]}"
        rate, what = peak * size, f"the GPU's peak of {peak / 1e12:,.0f} TFLOP/s"
    bound = span(flops * images / rate)
    return f"at least {bound} (matrix products alone, at {what}; large models take about twice that, small ones more)"


def _cpu_rate() -> float:
    """FLOP/s of fp32 matrix products on this host, all its cores together; a twentieth of a second long."""
    import torch

    left = torch.ones(512, 512)
    torch.mm(left, left)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < 0.05:
        torch.mm(left, left)
        count += 1
    return 2 * 512**3 * count / (time.monotonic() - began)


def _gib(value: int) -> str:
    return f"{value / 2**30:.3g} GiB"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
