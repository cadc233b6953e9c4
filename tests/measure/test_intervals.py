"""Interval arithmetic against a painted line of unit cells."""

from __future__ import annotations

import random

import pytest

from vitscale.measure.intervals import Intervals, difference, intersection, layered, length, merged

LINE = 60


def some(rng: random.Random, count: int) -> list[tuple[int, int]]:
    begins = [rng.randrange(LINE) for _ in range(count)]
    return [(begin, begin + rng.randrange(0, 12)) for begin in begins]


def cells(intervals: list[tuple[int, int]]) -> set[int]:
    return {cell for begin, end in intervals for cell in range(begin, end)}


def is_tidy(intervals: Intervals) -> bool:
    ends = [0, *[end for _, end in intervals]]
    return all(ends[i] <= begin < end for i, (begin, end) in enumerate(intervals))


@pytest.mark.parametrize("seed", range(300))
def test_sets_of_cells(seed: int) -> None:
    rng = random.Random(seed)
    a, b = some(rng, rng.randrange(9)), some(rng, rng.randrange(9))
    union_a, union_b = merged(a), merged(b)
    both, rest = intersection(union_a, union_b), difference(union_a, union_b)
    assert cells(union_a) == cells(a)
    assert cells(both) == cells(a) & cells(b)
    assert cells(rest) == cells(a) - cells(b)
    assert length(union_a) == len(cells(a)) == length(both) + length(rest)
    assert is_tidy(union_a)
    assert is_tidy(both)
    assert is_tidy(rest)


@pytest.mark.parametrize("seed", range(200))
def test_layers_are_a_partition_and_the_first_one_wins(seed: int) -> None:
    rng = random.Random(seed)
    whole = merged(some(rng, 4))
    layers = [(name, some(rng, rng.randrange(7))) for name in ("a", "b", "a", "c")]
    parts, rest = layered(whole, layers)
    assert sum(parts.values()) + length(rest) == length(whole)
    left = cells(whole)
    expected = {"a": 0, "b": 0, "c": 0}
    for name, intervals in layers:
        expected[name] += len(left & cells(intervals))
        left -= cells(intervals)
    assert parts == expected
    assert cells(rest) == left


def test_short_gaps_are_bridged() -> None:
    assert merged([(0, 10), (15, 20), (26, 30)], bridge=5) == [(0, 20), (26, 30)]
