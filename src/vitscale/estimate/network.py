"""What a network costs an update, in closed form: the line of an all-reduce, its overlap with backward, the break-even.

In: measured points of an all-reduce (measure.probe), the times of a model's step on one device, the gradient buckets
(estimate.buckets). Out: the predicted step time, what limits it, and the batch and accumulation at which communication
costs less than a given share of it. Pure arithmetic, torch-free; nothing here measures.

An all-reduce of s bytes takes alpha + s / beta (Hockney 1994; Thakur et al. 2005 for collectives). alpha and beta are
of the whole collective at one number of ranks, so they hold for that number only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from vitscale.estimate.buckets import NOTHING, Traffic

NOISY_BELOW = 64 * 2**10  # bytes; what a link's queue takes at once says nothing of its rate
BREAK_EVEN = 0.05
LARGEST_BATCH = 2**20
_ROUNDS = 50
Part = Literal["device", "host", "loader", "network"]


class Point(NamedTuple):
    """The time of an all-reduce of so many bytes: median over repeats."""

    num_bytes: int
    seconds: float


class Link(NamedTuple):
    """The line of an all-reduce, alpha_s + bytes / beta. worst: its largest relative error at the points it is of."""

    alpha_s: float
    beta_bytes_per_s: float
    worst: float = 0.0

    def seconds(self, num_bytes: int) -> float:
        """One all-reduce of so many bytes."""
        return self.alpha_s + num_bytes / self.beta_bytes_per_s


def fit_link(points: Sequence[Point]) -> Link | None:
    """The line with the least sum of errors by factors, so that one disturbed point does not turn it.

    Points below NOISY_BELOW are left out where three others are there. None: fewer than two sizes, or a time that does
    not grow with the size.
    """
    large = [point for point in points if point.num_bytes >= NOISY_BELOW]
    used = large if len({point.num_bytes for point in large}) >= 3 else list(points)
    used = [point for point in used if point.seconds > 0]
    if len({point.num_bytes for point in used}) < 2:
        return None
    first, last = min(used), max(used)
    if last.seconds <= first.seconds:
        return None
    alpha, slope = least_relative(used)
    worst = max(abs((alpha + slope * size) / seconds - 1) for size, seconds in used)
    return Link(alpha, 1 / slope, worst)


def least_relative(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(alpha >= 0, slope) with the least sum of |log((alpha + slope x) / y)|, at two or more different x.

    Half as long counts as twice as long. The best of all lines through two points, or through zero and one, is where
    least squares begin that are weighted anew in each round (Holland and Welsch 1977): alone they follow an odd last
    point.
    """
    alpha, slope = min(_lines(points), key=lambda line: _error(line, points))
    for _ in range(_ROUNDS):
        weights = [_weight((alpha + slope * x) / y) for x, y in points]
        better = _weighted(points, weights)
        if better[0] < 0 or _error(better, points) >= _error((alpha, slope), points):
            break
        alpha, slope = better
    return alpha, slope


def _lines(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    for x, y in points:
        if x > 0:
            yield 0.0, y / x
    for (x, y), (other_x, other_y) in combinations(points, 2):
        slope = (other_y - y) / (other_x - x) if other_x != x else 0.0
        if slope > 0 and y - slope * x >= 0:
            yield y - slope * x, slope


def _error(line: tuple[float, float], points: Sequence[tuple[float, float]]) -> float:
    alpha, slope = line
    return sum(abs(math.log(max(alpha + slope * x, 1e-12) / y)) for x, y in points)


def _weight(ratio: float) -> float:
    """What makes a squared relative error the size of the logarithm of the ratio."""
    error = max(abs(ratio - 1), 1e-4)
    return abs(math.log(max(ratio, 1e-3))) / error**2 if error > 1e-4 else 1 / error


def _weighted(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    rows = [(w / y**2, x, y) for w, (x, y) in zip(weights, points, strict=True)]
    s0 = sum(w for w, _, _ in rows)
    sx, sy = sum(w * x for w, x, _ in rows), sum(w * y for w, _, y in rows)
    sxx, sxy = sum(w * x * x for w, x, _ in rows), sum(w * x * y for w, x, y in rows)
    spread = s0 * sxx - sx * sx
    slope = (s0 * sxy - sx * sy) / spread
    return (sy - slope * sx) / s0, slope


class Line(NamedTuple):
    """Seconds of a part of a micro-step: fixed + per_image x images."""

    fixed_s: float
    per_image_s: float

    def seconds(self, images: float) -> float:
        """At so many images."""
        return self.fixed_s + self.per_image_s * images


def line_of(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """Through two measured batches (images, seconds); neither part is negative, whatever the noise."""
    (m, a), (n, b) = small, large
    if m == n:
        return Line(0.0, b / n)
    per_image = min(max((b - a) / (n - m), 0.0), b / n)
    return Line(b - per_image * n, per_image)


@dataclass(frozen=True)
class StepCost:
    """One device's own update: no other rank, no loader. optimizer_s: once per update."""

    forward: Line
    backward: Line
    optimizer_s: float

    def micro_step_s(self, images: float) -> float:
        """Forward and backward."""
        return self.forward.seconds(images) + self.backward.seconds(images)

    @property
    def fixed_s(self) -> float:
        """Of a micro-step, whatever its images."""
        return self.forward.fixed_s + self.backward.fixed_s


@dataclass(frozen=True)
class Loading:
    """What a rank's loader gives. beside: it reads ahead while the device computes, else between the updates."""

    images_per_s: float
    beside: bool


@dataclass(frozen=True)
class Prediction:
    """One update, in seconds. communication_s: of all buckets; exposed_s: what backward does not hide of it."""

    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    loader_s: float
    fixed_s: float

    @property
    def exposed_share(self) -> float:
        """The share of the step that communication costs."""
        return self.exposed_s / self.step_s

    @property
    def limit(self) -> Part:
        """What takes most of the step: the largest of what the device computes, the host's fixed cost of starting each
        micro-step, waiting for the loader, and waiting for the network."""
        parts: dict[Part, float] = {
            "device": self.compute_s - self.fixed_s,
            "host": self.fixed_s,
            "loader": self.loader_s,
            "network": self.exposed_s,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before it begins. link None: one process. loading None: no loader was measured."""

    cost: StepCost
    link: Link | None = None
    traffic: Traffic = NOTHING
    loading: Loading | None = None

    def predict(self, micro_batch: int, accum: int = 1) -> Prediction:
        """One update of accum micro-steps of micro_batch images on each rank; the last one reduces."""
        compute = accum * self.cost.micro_step_s(micro_batch) + self.cost.optimizer_s
        sent, exposed = self._communication(micro_batch, accum)
        busy = compute + exposed
        wait = self._wait(micro_batch * accum, busy)
        fixed = accum * self.cost.fixed_s
        return Prediction(busy + wait, compute, sent, exposed, wait, fixed)

    def _communication(self, micro_batch: int, accum: int) -> tuple[float, float]:
        """(seconds of all buckets, seconds after the end of backward). One bucket is on the network at a time."""
        if self.link is None:
            return 0.0, 0.0
        backward = self.cost.backward.seconds(micro_batch)
        free = 0.0
        for bucket in self.traffic.buckets:
            free = max(free, bucket.ready * backward) + self.link.seconds(bucket.num_bytes)
        times = accum if self.traffic.each_micro_step else 1
        total = sum(self.link.seconds(bucket.num_bytes) for bucket in self.traffic.buckets)
        return times * total, times * max(0.0, free - backward)

    def _wait(self, images: int, busy: float) -> float:
        if self.loading is None:
            return 0.0
        reading = images / self.loading.images_per_s
        return max(0.0, reading - busy) if self.loading.beside else reading

    def batch_for(self, share: float = BREAK_EVEN) -> int | None:
        """The smallest micro batch, without accumulation, at which communication costs less than `share` of the step.

        None: not even at LARGEST_BATCH. Memory is not looked at.
        """
        return _smallest(lambda images: self.predict(images).exposed_share < share, LARGEST_BATCH)

    def accumulation_for(self, micro_batch: int, share: float = BREAK_EVEN) -> int | None:
        """The same for the accumulation at a given micro batch."""
        return _smallest(lambda accum: self.predict(micro_batch, accum).exposed_share < share, LARGEST_BATCH)


def _smallest(holds: Callable[[int], bool], most: int) -> int | None:
    """The smallest number for which a condition holds that holds for all larger ones; None beyond `most`."""
    high = 1
    while not holds(high):
        if high >= most:
            return None
        high *= 2
    low = high // 2  # does not hold, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
