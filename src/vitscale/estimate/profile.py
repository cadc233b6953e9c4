"""Profile: what a probe measured of the devices and the network of a run, and what follows for that run. Torch-free.

In: the measured figures (measure.probe). Out: a Forecast (estimate.network) of a config on these devices, and which
devices cost more than they bring. The profile is JSON, kept in the cache as the machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.estimate.buckets import traffic_of
from vitscale.estimate.communication import ring_factor
from vitscale.estimate.network import Forecast, Line, Link, Loading, Point, StepCost, fit_link, line_of
from vitscale.estimate.unequal import Advice, Cluster, Device, advise


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spread(_Part):
    """One figure: median, least and most of its repeats."""

    value: float
    least: float
    most: float
    repeats: int

    @property
    def width(self) -> float:
        """How far the repeats lie apart, relative to the figure."""
        return (self.most - self.least) / self.value if self.value else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Of the repeats of one figure."""
    return Spread(value=median(values), least=min(values), most=max(values), repeats=len(values))


class StepTimes(_Part):
    """The model's own step on one device, at one micro batch: seconds of its parts, without loader and other ranks."""

    images: int
    forward: Spread
    backward: Spread
    optimizer: Spread


class RankProfile(_Part):
    """One rank, measured while the others were measured. Rates in FLOP/s, bytes/s (read and written) and images/s."""

    host: str
    device: str
    matrix_flops: dict[str, Spread]
    copy_bytes_per_s: Spread
    host_to_device_bytes_per_s: Spread | None = None
    steps: tuple[StepTimes, ...] = ()
    loader_images_per_s: Spread | None = None

    @property
    def cost(self) -> StepCost | None:
        """The lines through the smallest and the largest measured micro batch."""
        if not self.steps:
            return None
        small, large = self.steps[0], self.steps[-1]
        forward = line_of((small.images, small.forward.value), (large.images, large.forward.value))
        backward = line_of((small.images, small.backward.value), (large.images, large.backward.value))
        return StepCost(forward, backward, large.optimizer.value)


class AllReduce(_Part):
    """One message size; the slowest rank of each repeat."""

    num_bytes: int
    seconds: Spread


class Profile(_Part):
    """A probe. seconds: how long its parts took. step: how the model's step was run; loader_beside: it reads ahead."""

    schema_version: Literal[1] = 1
    made_at: str
    backend: str
    config: str
    step: str = "eager"
    ranks: tuple[RankProfile, ...]
    all_reduce: tuple[AllReduce, ...] = ()
    loader_beside: bool = False
    seconds: dict[str, float] = {}

    @property
    def link(self) -> Link | None:
        """The line of an all-reduce over these ranks."""
        return fit_link([Point(one.num_bytes, one.seconds.value) for one in self.all_reduce])

    @property
    def latency_s(self) -> float | None:
        """The time of the smallest message."""
        return self.all_reduce[0].seconds.value if self.all_reduce else None

    def slowest_cost(self, micro_batch: int) -> StepCost | None:
        """Of the rank that all others wait for."""
        costs = [cost for rank in self.ranks if (cost := rank.cost) is not None]
        return max(costs, key=lambda cost: cost.micro_step_s(micro_batch), default=None)


def forecast_of(profile: Profile, config: RunConfig, decisions: Decisions) -> Forecast | None:
    """What the profile says of a run; None where no step was measured, or what is sent is not known in closed form."""
    cost = profile.slowest_cost(decisions.batch.micro_batch_size)
    traffic = traffic_of(config, decisions)
    if cost is None or traffic is None or (traffic.buckets and profile.link is None):
        return None
    rates = [rank.loader_images_per_s.value for rank in profile.ranks if rank.loader_images_per_s]
    loading = Loading(min(rates), profile.loader_beside) if rates else None
    return Forecast(cost, profile.link if traffic.buckets else None, traffic, loading)


def advice_of(profile: Profile, config: RunConfig, decisions: Decisions) -> Advice | None:
    """Which ranks to leave out; None where there is one only, or a rank's step or the traffic is not known.

    The network counts as far as backward does not hide it at the run's own batch.
    """
    forecast = forecast_of(profile, config, decisions)
    costs = [rank.cost for rank in profile.ranks]
    if forecast is None or len(costs) < 2 or None in costs:
        return None
    images = decisions.batch.micro_batch_size * decisions.batch.grad_accum_steps
    exposed = forecast.predict(decisions.batch.micro_batch_size, decisions.batch.grad_accum_steps).exposed_s
    devices = [
        Device(rank.device, _update_line(cost, decisions.batch.grad_accum_steps))
        for rank, cost in zip(profile.ranks, costs, strict=True)
        if cost is not None
    ]
    return advise(Cluster(tuple(devices), exposed / ring_factor(len(devices))), images)


def _update_line(cost: StepCost, accum: int) -> Line:
    """A whole update of so many micro-steps, by its images."""
    per_image = cost.forward.per_image_s + cost.backward.per_image_s
    return Line(accum * cost.fixed_s + cost.optimizer_s, per_image)
