"""Devices of unequal speed: what each subset of them trains, in lockstep or with balanced shares. Torch-free.

In: each device's own time for a number of images, and what an all-reduce costs. Out: step times, images per second,
and which devices cost more than they bring. In lockstep an update lasts as long as its slowest device needs for the
same number of images; balanced, every device gets images in proportion to its speed. The all-reduce comes on top, as a
ring: it takes 2 (n - 1) / n of the time that each link needs for the gradients (nccl-tests, doc/PERFORMANCE.md), not
overlapped. Where only one time per device is known, it is taken as proportional to the images.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from vitscale.estimate.communication import ring_factor
from vitscale.estimate.network import Line, least_relative

WORTH = 0.05  # a smaller gain is no reason to leave a device out, or to take one in


class Device(NamedTuple):
    """One device, and the time that it needs for its images of an update."""

    name: str
    cost: Line


class Work(NamedTuple):
    """An update on some devices: which (by their place), the images of each, its time and what that gives."""

    places: tuple[int, ...]
    images: tuple[int, ...]
    step_s: float

    @property
    def images_per_s(self) -> float:
        """Over all devices."""
        return sum(self.images) / self.step_s

    def epoch_s(self, images: int) -> float:
        """Time for so many images."""
        return images / self.images_per_s


@dataclass(frozen=True)
class Cluster:
    """Devices, and the seconds in which the gradients pass one link once (0: no network is known)."""

    devices: tuple[Device, ...]
    link_s: float = 0.0

    def lockstep(self, places: Sequence[int], images: int) -> Work:
        """The same number of images on each device of the subset."""
        return self._work(places, (images,) * len(places))

    def balanced(self, places: Sequence[int], total: int) -> Work:
        """A global batch shared out so that the last one is done as early as possible; each gets one image at least."""
        costs = [self.devices[place].cost for place in places]
        images = [1] * len(costs)
        queue = [(cost.seconds(2), index) for index, cost in enumerate(costs)]
        heapq.heapify(queue)
        for _ in range(total - len(costs)):
            _, index = queue[0]
            images[index] += 1
            heapq.heapreplace(queue, (costs[index].seconds(images[index] + 1), index))
        return self._work(places, tuple(images))

    def fastest_first(self, images: int) -> tuple[int, ...]:
        """The devices' places by their own time for so many images."""
        return tuple(sorted(range(len(self.devices)), key=lambda place: self.devices[place].cost.seconds(images)))

    def _work(self, places: Sequence[int], images: tuple[int, ...]) -> Work:
        slowest = max(self.devices[p].cost.seconds(n) for p, n in zip(places, images, strict=True))
        return Work(tuple(places), images, slowest + self.link_s * ring_factor(len(places)))


class Advice(NamedTuple):
    """What to do with a set of devices.

    everyone: all in lockstep. kept: the devices worth having in lockstep; as many as come within WORTH of the best.
    dropped: the places of the others. underfed: all devices with shares of the same global batch as everyone's.
    """

    everyone: Work
    kept: Work
    dropped: tuple[int, ...]
    underfed: Work


def advise(cluster: Cluster, images: int) -> Advice:
    """Which devices to leave out, at so many images per device and update.

    Of the subsets of one size the fastest devices are best, so only these are looked at.
    """
    order = cluster.fastest_first(images)
    ways = [cluster.lockstep(order[:count], images) for count in range(1, len(order) + 1)]
    best = max(way.images_per_s for way in ways)
    kept = [way for way in ways if way.images_per_s >= best / (1 + WORTH)][-1]
    everyone = ways[-1]
    underfed = cluster.balanced(tuple(range(len(order))), images * len(order))
    return Advice(everyone, kept, order[len(kept.places) :], underfed)


class Seen(NamedTuple):
    """One measured point: the device of each rank, and the seconds of an update."""

    names: tuple[str, ...]
    step_s: float


def infer(points: Sequence[Seen], images: int) -> Cluster | None:
    """Tell the devices of a series apart that adds one kind after the other, each device working on `images` images.

    The points with one kind alone give its time and the network; each later point gives the time of its one new kind,
    which all others wait for. A kind that nobody waits for counts as fast as the slowest one so far. None: no point of
    one kind alone, or two new kinds at once. The devices are those of the largest point.
    """
    ordered = sorted(points, key=lambda seen: len(seen.names))
    first = ordered[0].names[0] if ordered and ordered[0].names else None
    alone = [seen for seen in ordered if set(seen.names) == {first}]
    if first is None or not alone:
        return None
    own_s, link_s = _network([(ring_factor(len(seen.names)), seen.step_s) for seen in alone])
    times = {first: own_s}
    for seen in ordered:
        new = set(seen.names) - set(times)
        if len(new) > 1:
            return None
        for name in new:
            times[name] = max(seen.step_s - link_s * ring_factor(len(seen.names)), *times.values())
    names = ordered[-1].names
    return Cluster(tuple(Device(name, Line(0.0, times[name] / images)) for name in names), link_s)


def _network(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(time of one device, seconds per link) from equal devices; 0 for a network that cannot be told."""
    if len({x for x, _ in points}) < 2:
        return points[0][1], 0.0
    own_s, link_s = least_relative(points)
    return (own_s, link_s) if link_s > 0 else (max(y for _, y in points), 0.0)


def runs(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(name, how many) of equal names that follow one another."""
    for name, group in groupby(names):
        yield name, sum(1 for _ in group)
