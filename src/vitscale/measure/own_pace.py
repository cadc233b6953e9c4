"""How fast this rank is at the run's own step, measured on the plain model before an engine wraps it.

In: a plain model, its loss and the run's precision. Out: an OwnPace from a few forwards and backwards at two sizes,
with the images that the device holds, where it tells its memory. No rank waits for another here. The model is left on
its device without gradients, its weights untouched; shares are decided by whoever has heard all ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.engine.base import LossFn
from vitscale.engine.edge import Edge
from vitscale.engine.own_time import OwnTime, waits_in_forward
from vitscale.errors import DeviceError
from vitscale.estimate.memory import state_of
from vitscale.estimate.pace import OwnPace, fit_pace
from vitscale.models.drop_path import num_draws, set_draws
from vitscale.parallel.apply import DTYPES, checkpoint_activations

REPEATS = 4  # of which the first, a warm-up, is not counted
USABLE = 0.9  # of a GPU's memory: the rest is for the allocator's slack, buckets in flight and workspaces


class _Size(NamedTuple):
    """What one size took: seconds of forward and backward, of the forward alone, and the peak of allocated bytes."""

    images: int
    whole_s: float
    forward_s: float
    peak_bytes: int


@dataclass(frozen=True)
class _Bench:
    model: nn.Module
    loss_fn: LossFn
    decisions: Decisions
    device: torch.device
    image: tuple[int, int]  # channels, edge
    own: OwnTime

    def size(self, images: int) -> _Size:
        """Medians over a few repeats."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        times = [self._once(images) for _ in range(REPEATS)][1:]
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        wholes, forwards = zip(*times, strict=True)
        return _Size(images, statistics.median(wholes), statistics.median(forwards), peak)

    def _once(self, images: int) -> tuple[float, float]:
        channels, edge = self.image
        batch = torch.zeros(images, channels, edge, edge, device=self.device)
        targets = torch.zeros(images, dtype=torch.long, device=self.device)
        set_draws(self.model, torch.zeros(images, num_draws(self.model), device=self.device))
        begin = Edge(self.device.type == "cuda")
        with self._autocast():
            self.own.ask()
            with self.own.forward(images):
                logits = self.model(batch)
        self.loss_fn(logits.float(), targets).sum().backward()  # type: ignore[no-untyped-call]
        whole = Edge(self.device.type == "cuda").since(begin)  # waits for the device
        self.model.zero_grad(set_to_none=True)
        forward = self.own.take()
        assert forward is not None
        return whole, forward.seconds

    def _autocast(self) -> torch.autocast | nullcontext[None]:
        """Low precision by autocast also where the run casts its weights: they must stay as they are."""
        compute = self.decisions.precision.compute
        if compute not in ("bf16", "fp16"):
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[compute])


def measure_own_pace(
    model: nn.Module, loss_fn: LossFn, config: RunConfig, decisions: Decisions, device: torch.device, img_size: int
) -> OwnPace:
    """Measure this rank; DeviceError if not even a small part of its even share fits beside the whole model."""
    out_of_memory = "the whole model and a few images are more than its memory; give weights instead of auto"
    try:
        model.to(device)
    except torch.OutOfMemoryError:
        raise DeviceError(out_of_memory) from None
    model.train()
    checkpoint_activations(model, config.performance)
    waits = waits_in_forward(decisions.engine, decisions.zero_stage)
    own = OwnTime(device, model if waits else None)
    bench = _Bench(model, loss_fn, decisions, device, (config.model.in_chans, img_size), own)
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        sizes = _two_sizes(bench.size, decisions.batch.micro_batch_size)
    if sizes is None:
        raise DeviceError(out_of_memory)
    small, large = sizes
    most = _most(config, decisions, model, device, small, large) if cuda else None
    if cuda:  # neither memory nor a peak of it is left to the run
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return OwnPace(
        fit_pace(small.images, small.whole_s, large.images, large.whole_s, most),
        fit_pace(small.images, small.forward_s, large.images, large.forward_s, most),
    )


def _two_sizes(measure: Callable[[int], _Size], images: int) -> tuple[_Size, _Size] | None:
    """A quarter of the even share and the whole of it; halves of that where it is more than the memory."""
    while images:
        try:
            return measure(max(1, images // 4)), measure(images)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            images //= 2
    return None


def _most(
    config: RunConfig, decisions: Decisions, model: nn.Module, device: torch.device, small: _Size, large: _Size
) -> int | None:
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    state = state_of(config, decisions, sum(p.numel() for p in model.parameters()))
    return images_that_fit(int(total * USABLE) - others - state.total, small[::3], large[::3], decisions.unit)


def images_that_fit(room: int, small: tuple[int, int], large: tuple[int, int], unit: int = 1) -> int | None:
    """Images whose activations fit into `room` bytes, from two measured (images, peak bytes), in whole units and at
    least one; None where the peaks do not tell."""
    grown = large[1] - small[1]
    if large[0] <= small[0] or grown <= 0:
        return None
    per_image = grown / (large[0] - small[0])
    return max(unit, int(room / per_image) // unit * unit)
