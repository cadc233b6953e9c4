"""Arithmetic of time intervals in whole nanoseconds: exact, so that the parts of a partition sum to the whole.

An `Intervals` is a list of (begin, end) with begin < end, sorted and disjoint; `merged` makes one of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
Intervals = list[Interval]


def merged(intervals: Iterable[Interval], *, bridge: int = 0) -> Intervals:
    """The union; gaps of up to `bridge` are closed as well."""
    union: Intervals = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if union and begin <= union[-1][1] + bridge:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> Intervals:
    """What lies in both."""
    common: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            common.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def difference(a: Sequence[Interval], b: Sequence[Interval]) -> Intervals:
    """What lies in `a` and not in `b`."""
    rest: Intervals = []
    j = 0
    for begin, end in a:
        while j < len(b) and b[j][1] <= begin:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            if b[k][0] > begin:
                rest.append((begin, b[k][0]))
            begin = max(begin, b[k][1])
            k += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def length(intervals: Iterable[Interval]) -> int:
    """Nanoseconds in all."""
    return sum(end - begin for begin, end in intervals)


def layered(
    whole: Sequence[Interval], layers: Iterable[tuple[str, Iterable[Interval]]]
) -> tuple[dict[str, int], Intervals]:
    """Give each instant of `whole` to the first layer that covers it.

    Returns nanoseconds by name (a name may come more than once) and what no layer covers.
    """
    parts: dict[str, int] = {}
    rest = list(whole)
    for name, intervals in layers:
        covering = merged(intervals)
        before = length(rest)
        rest = difference(rest, covering)
        parts[name] = parts.get(name, 0) + before - length(rest)
    return parts, rest
