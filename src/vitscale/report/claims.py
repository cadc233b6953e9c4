"""What may be said of two measured figures: more, less, or nothing.

A difference is claimed only if both sides have repeats, it is larger than the study's noise floor, and its own 95 %
interval, widened for the number of rivals, leaves out no difference. All sentences of the verdict go through here;
nothing else decides what differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from vitscale.analysis.summary import CaseSummary, Interval

LARGEST_FLOOR = 1.0  # relative; where runs differ by more than this, nothing is claimed at all
Answer = Literal["more", "less", "not shown", "one run", "no noise floor"]


@dataclass(frozen=True)
class Statement:
    """One point of the verdict. topic: a word or two, for people who scan."""

    topic: str
    sentence: str


@dataclass(frozen=True)
class Claim:
    """a beside b. ratio: a / b, with its interval or without bounds."""

    answer: Answer
    ratio: Interval

    @property
    def shown(self) -> bool:
        """Whether a difference may be claimed."""
        return self.answer in ("more", "less")

    @property
    def judged(self) -> bool:
        """Whether there was enough to look for one."""
        return self.answer in ("more", "less", "not shown")


def compare(a: Interval, b: Interval, repeats: tuple[int, int], floor: float | None, rivals: int = 1) -> Claim:
    """Whether `a` is more than `b`, for figures whose ratio matters. rivals: how many such pairs are looked at."""
    if min(repeats) < 2:
        return Claim("one run", Interval(_divide(a.value, b.value)))
    if floor is None or None in (*a, *b):
        return Claim("no noise floor", Interval(_divide(a.value, b.value)))
    ratio = ratio_of(a, b, _wider(rivals))
    assert ratio.low is not None
    assert ratio.high is not None
    if floor > LARGEST_FLOOR:
        return Claim("not shown", ratio)
    if ratio.value > 1 + floor and ratio.low > 1:
        return Claim("more", ratio)
    if _divide(b.value, a.value) > 1 + floor and ratio.high < 1:
        return Claim("less", ratio)
    return Claim("not shown", ratio)


def ratio_of(a: Interval, b: Interval, wider: float = 1.0) -> Interval:
    """a / b with a 95 % interval from those of both: their distances add in squares, on a log scale. wider: times this.

    Source: the method of variance estimates recovery, Zou and Donner, Statistics in Medicine 27 (2008).
    """
    assert a.low is not None
    assert a.high is not None
    assert b.low is not None
    assert b.high is not None
    ratio = _divide(a.value, b.value)
    down = wider * math.hypot(_log(a.value, a.low), _log(b.high, b.value))
    up = wider * math.hypot(_log(a.high, a.value), _log(b.value, b.low))
    return Interval(ratio, ratio * math.exp(-down), ratio * math.exp(min(up, 700)))


def compare_speed(a: CaseSummary, b: CaseSummary, floor: float | None, rivals: int = 1) -> Claim:
    """Whether `a` trains more images per second than `b`, one of so many that it is set beside."""
    assert a.images_per_s is not None
    assert b.images_per_s is not None
    return compare(a.images_per_s, b.images_per_s, (a.repeats, b.repeats), floor, rivals)


def compare_accuracy(a: CaseSummary, b: CaseSummary, comparisons: int = 1) -> Answer:
    """Whether `a` ended more accurate than `b`, picked among so many pairs. The noise floor, of times, is not asked.

    The two intervals, widened for the number of pairs by normal quantiles (Bonferroni), must not touch.
    """
    assert a.accuracy is not None
    assert b.accuracy is not None
    if min(a.repeats, b.repeats) < 2:
        return "one run"
    if None in (*a.accuracy, *b.accuracy):
        return "no noise floor"
    above, below = (a, b) if a.accuracy.value >= b.accuracy.value else (b, a)
    reach = _wider(comparisons) * (_down(above) + _up(below))
    if above.accuracy.value - below.accuracy.value <= reach:  # type: ignore[union-attr]
        return "not shown"
    return "more" if above is a else "less"


def _wider(comparisons: int) -> float:
    """By how much an interval grows for so many comparisons: Bonferroni, by normal quantiles."""
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.025 / max(1, comparisons)) / normal.inv_cdf(0.975)


def _down(case: CaseSummary) -> float:
    assert case.accuracy is not None
    assert case.accuracy.low is not None
    return case.accuracy.value - case.accuracy.low


def _up(case: CaseSummary) -> float:
    assert case.accuracy is not None
    assert case.accuracy.high is not None
    return case.accuracy.high - case.accuracy.value


def _log(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 and below > 0 else math.inf


def _divide(a: float, b: float) -> float:
    return a / b if b else float("inf")
