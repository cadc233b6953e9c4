"""How fast each rank is, and the shares of a micro-step that make all of them end together. Torch-free arithmetic.

A rank's time for n images is taken as fixed_s + n * per_image_s: launching kernels costs the same whatever n is, so two
sizes must be measured to tell the two apart. In lockstep a micro-step takes as long as its slowest rank; the best
shares make that the least. Judgement over time is here too: `Rebalancer` and `StragglerWatch` hear of each log interval
and are the same on every rank, since every rank hears the same numbers.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from vitscale.errors import DeviceError

THRESHOLD = 0.05  # shares change for a gain of more than this part of a micro-step
PATIENCE = 3  # log intervals in a row that must agree
BACKWARD = 2.0  # of a forward's time: a backward multiplies matrices twice where a forward does once
SLOW, WORTH = 1.25, 0.05  # a straggler takes this much of the others' own time, and costs this part of an update


class Pace(NamedTuple):
    """Seconds of one rank for n images. most: images that its memory holds; None: no limit is known."""

    fixed_s: float
    per_image_s: float
    most: int | None = None

    def seconds(self, images: int) -> float:
        """Of a micro-step of `images` images."""
        return self.fixed_s + self.per_image_s * images

    def times(self, factor: float) -> Pace:
        """The same rank, slower by `factor`."""
        return Pace(self.fixed_s * factor, self.per_image_s * factor, self.most)


class OwnPace(NamedTuple):
    """Of one rank: forward and backward together, and the forward alone, which is what is timed during a run."""

    whole: Pace
    forward: Pace


def fit_pace(small: int, small_s: float, large: int, large_s: float, most: int | None = None) -> Pace:
    """The line through two measured sizes, neither part of it negative.

    Noise can make the larger size the faster one: then all is taken for fixed but a thousandth, so that the line still
    rises; or the line begins below zero: then all is taken for the images.
    """
    per_image = (large_s - small_s) / (large - small) if large > small else large_s / large
    per_image = min(max(per_image, 1e-3 * large_s / large), large_s / large)
    return Pace(large_s - per_image * large, per_image, most)


def lockstep_s(paces: Sequence[Pace], shares: Sequence[int]) -> float:
    """Seconds of a micro-step in which all wait for the slowest."""
    return max(pace.seconds(images) for pace, images in zip(paces, shares, strict=True))


def best_shares(paces: Sequence[Pace], total: int, unit: int = 1) -> tuple[int, ...]:
    """The shares of `total` images that end first, each at least one unit and none beyond its memory.

    One unit after the other goes to the rank that would then end first, which is the least maximum, since a rank's time
    only grows with its images. Raises DeviceError if the devices do not hold them all.
    """
    shares = [unit] * len(paces)
    waiting = [(pace.seconds(2 * unit), rank) for rank, pace in enumerate(paces)]
    heapq.heapify(waiting)
    for _ in range(total // unit - len(paces)):
        while waiting and not _fits(paces[waiting[0][1]], shares[waiting[0][1]] + unit):
            heapq.heappop(waiting)
        if not waiting:
            held = sum(shares)
            raise DeviceError(
                f"parallel.balance=auto: the devices hold about {held} images of a micro-step together, not {total}; "
                "lower train.micro_batch_size, or set performance.checkpointing=true"
            )
        _, rank = waiting[0]
        shares[rank] += unit
        heapq.heapreplace(waiting, (paces[rank].seconds(shares[rank] + unit), rank))
    return tuple(shares)


def _fits(pace: Pace, images: int) -> bool:
    return pace.most is None or images <= pace.most


class Proposal(NamedTuple):
    """Other shares, and by which part of a micro-step they would be faster: now / then - 1."""

    shares: tuple[int, ...]
    gain: float


def propose(paces: Sequence[Pace], shares: Sequence[int], unit: int = 1) -> Proposal | None:
    """Better shares than these, if they pay; shares beyond a device's memory are left at any price."""
    best = best_shares(paces, sum(shares), unit)
    gain = lockstep_s(paces, shares) / lockstep_s(paces, best) - 1
    too_large = not all(_fits(pace, images) for pace, images in zip(paces, shares, strict=True))
    return Proposal(best, gain) if gain > THRESHOLD or (too_large and best != tuple(shares)) else None


class Rebalancer:
    """Whether to change the shares, from the forwards that the ranks time during the run.

    A forward that takes k times what was measured at the start means a rank that is k times slower now; a factor that
    all ranks have in common changes nothing. A change must pay in PATIENCE intervals in a row, and each later one in
    twice as many as the one before: where others' load makes the times swing, shares must not swing with them for ever.
    """

    def __init__(self, paces: Sequence[OwnPace], shares: Sequence[int], unit: int) -> None:
        self.shares = tuple(shares)
        self._paces, self._unit = paces, unit
        self._patience = PATIENCE
        self._factors: deque[list[float]] = deque(maxlen=self._patience)
        self._paid = 0

    def hear(self, images: Sequence[int], forward_s: Sequence[float]) -> Proposal | None:
        """One interval's forwards by rank; a rank that timed none, or a short micro-batch, says nothing."""
        if tuple(images) != self.shares or not all(seconds > 0 for seconds in forward_s):
            return None
        expected = [pace.forward.seconds(n) for pace, n in zip(self._paces, images, strict=True)]
        self._factors.append([s / e for s, e in zip(forward_s, expected, strict=True)])
        factors = [statistics.median(column) for column in zip(*self._factors, strict=True)]
        now = [pace.whole.times(factor) for pace, factor in zip(self._paces, factors, strict=True)]
        found = propose(now, self.shares, self._unit)
        self._paid = self._paid + 1 if found else 0
        return found if self._paid >= self._patience else None

    def change(self, shares: Sequence[int]) -> None:
        """Begin anew at other shares."""
        self.shares = tuple(shares)
        self._patience *= 2
        self._factors = deque(maxlen=self._patience)
        self._paid = 0


class Straggler(NamedTuple):
    """A rank that the others wait for. since: the update from which on; cost_s: about how long, in each update."""

    rank: int
    since: int
    cost_s: float
    step_s: float


class StragglerWatch:
    """Tells of a rank once, after PATIENCE intervals in a row in which all others waited for it."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._since = 0
        self._costs: list[float] = []
        self._told: set[int] = set()

    def hear(self, first_update: int, own_s: Sequence[float], step_s: float) -> Straggler | None:
        """One interval: its first update, what each rank needs for its own part of an update (NaN: not known), and
        what an update takes."""
        if len(own_s) < 2 or any(math.isnan(seconds) for seconds in own_s):
            return None
        slowest = max(range(len(own_s)), key=lambda rank: own_s[rank])
        others = statistics.median(seconds for rank, seconds in enumerate(own_s) if rank != slowest)
        cost = own_s[slowest] - others
        if own_s[slowest] <= SLOW * others or cost <= WORTH * step_s:
            self._rank = None
            return None
        if slowest != self._rank:
            self._rank, self._since, self._costs = slowest, first_update, []
        self._costs.append(cost)
        if len(self._costs) < PATIENCE or slowest in self._told:
            return None
        self._told.add(slowest)
        return Straggler(slowest, self._since, statistics.mean(self._costs), step_s)


def own_update_s(images_s: float, forward_s: float, data_s: float, micro_steps: int, pace: OwnPace | None) -> float:
    """A rank's own part of an update, from its forward of `images_s` images: waiting for data, and micro_steps times
    forward and backward, whose ratio is the measured one where there is one."""
    ratio = 1 + BACKWARD
    if pace is not None:
        ratio = pace.whole.seconds(int(images_s)) / pace.forward.seconds(int(images_s))
    return data_s + micro_steps * ratio * forward_s
