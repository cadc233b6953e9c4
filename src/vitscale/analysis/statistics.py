"""Medians, intervals and tests over the repeats of a case. The formulas and their sources stand in docs/analysis.md.

In: one figure per run. Updates within a run depend on each other (clocks, caches, neighbours on the machine), so a run
counts once, however many updates it had. Out: estimates with 95 % intervals, or none where there are too few runs.
Times and rates are compared on a log scale, where noise is relative. Nothing is random: seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, variance
from typing import NamedTuple

from vitscale.analysis.summary import Interval

ALPHA = 0.05
POWER = 0.9
MIN_BOOTSTRAP = 6  # runs; with fewer, no resampling of runs reaches 95 %
_DRAWS = 2000
ALIKE = 1e-9  # runs that differ by less, relative, are copies or a clock's steps: they tell nothing of noise


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def t_p_value(t: float, df: float) -> float:
    """Two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(df, -abs(t)))


def median_interval(values: Sequence[float], *, log: bool = True) -> Interval:
    """The median over runs with its interval: bootstrap from 6 runs on, Student's t for 2 to 5, none for one.

    log: times and rates; False for figures that may be zero or whose noise is absolute, such as accuracy.
    """
    centre = median(values)
    log = log and min(values) > 0
    if len(values) < 2:
        return Interval(centre)
    if len(values) >= MIN_BOOTSTRAP:
        low, high = _bootstrap(values)
    else:
        scaled = [math.log(value) for value in values] if log else list(values)
        reach = t_quantile(1 - ALPHA / 2, len(values) - 1) * math.sqrt(variance(scaled) / len(values))
        low, high = fmean(scaled) - reach, fmean(scaled) + reach
        if log:
            low, high = math.exp(low), _exp(high)
    return Interval(centre, min(low, centre), max(high, centre))


def _bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Percentiles of resampled medians, moved outwards for the small sample (Hesterberg 2015)."""
    import numpy as np
    from scipy.special import ndtr

    n = len(values)
    picks = np.random.default_rng(0).integers(0, n, (_DRAWS, n))
    medians = np.median(np.asarray(values, dtype=float)[picks], axis=1)
    tail = float(ndtr(math.sqrt(n / (n - 1)) * t_quantile(ALPHA / 2, n - 1)))
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


class Contrast(NamedTuple):
    """The ratio of two cases on a log scale, with what a t-test needs."""

    ratio: float  # of medians
    difference: float  # of mean logs
    error: float  # standard error of the difference
    df: float

    @property
    def identical(self) -> bool:
        """The runs of each side gave one and the same figure, so nobody knows what noise does."""
        return self.error < ALIKE

    def interval(self, alpha: float = ALPHA) -> Interval:
        """The ratio with its interval at 1 - alpha; without one where the runs are identical."""
        if self.identical:
            return Interval(self.ratio)
        reach = t_quantile(1 - alpha / 2, self.df) * self.error
        low, high = math.exp(self.difference - reach), _exp(self.difference + reach)
        return Interval(self.ratio, min(low, self.ratio), max(high, self.ratio))

    def p_value(self) -> float:
        """Two-sided, of the ratio being 1. Identical runs show nothing."""
        if self.identical:
            return 1.0
        return t_p_value(self.difference / self.error, self.df)

    def smallest_seen(self, alpha: float = ALPHA) -> float:
        """The smallest relative difference that a test at alpha would find with 90 % power; none if runs are alike."""
        if self.identical:
            return math.inf
        return _exp((t_quantile(1 - alpha / 2, self.df) + t_quantile(POWER, self.df)) * self.error) - 1


def welch(above: Sequence[float], below: Sequence[float]) -> Contrast:
    """Compare the runs of two cases, at least two on each side."""
    a, b = [math.log(value) for value in above], [math.log(value) for value in below]
    parts = [(variance(logs) / len(logs), len(logs) - 1.0) for logs in (a, b)]
    return Contrast(median(above) / median(below), fmean(a) - fmean(b), *_satterthwaite(parts))


def joint(contrasts: Sequence[Contrast]) -> Contrast:
    """The geometric mean of several independent ratios."""
    n = len(contrasts)
    parts = [((c.error / n) ** 2, c.df) for c in contrasts]
    ratio = math.exp(fmean(math.log(c.ratio) for c in contrasts))
    return Contrast(ratio, fmean(c.difference for c in contrasts), *_satterthwaite(parts))


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent terms (variance, degrees of freedom)."""
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0, sum(df for _, df in parts)
    return math.sqrt(total), total**2 / sum(part**2 / df for part, df in parts)


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """The ratio of two cases' medians, with its interval where both ran at least twice."""
    if min(len(above), len(below)) < 2:
        return Interval(median(above) / median(below))
    return welch(above, below).interval()


class Noise(NamedTuple):
    """How much runs of the same case differ in this study."""

    floor: float  # relative: two cases that differ by less cannot be told apart
    spread: float  # standard deviation of log times over runs, pooled over the cases
    df: int
    comparisons: int
    runs: int  # per case, the middle one


def noise_floor(cases: Sequence[Sequence[float]]) -> Noise | None:
    """The least significant difference between any two cases, corrected for their number; None without repeats."""
    repeated = [[math.log(value) for value in runs] for runs in cases if len(runs) > 1]
    df = sum(len(logs) - 1 for logs in repeated)
    if not df:
        return None
    spread = math.sqrt(sum(variance(logs) * (len(logs) - 1) for logs in repeated) / df)
    comparisons = max(1, len(cases) * (len(cases) - 1) // 2)
    runs = int(median(len(logs) for logs in repeated))
    reach = t_quantile(1 - ALPHA / (2 * comparisons), df) * spread * math.sqrt(2 / runs)
    return Noise(_exp(reach) - 1, spread, df, comparisons, runs)


def relative_spread(values: Sequence[float]) -> float:
    """The middle half's width by the median, within one run."""
    ordered = sorted(values)
    quarter, middle = len(ordered) // 4, median(ordered)
    return (ordered[-1 - quarter] - ordered[quarter]) / middle if middle > 0 else 0.0


def drift(values: Sequence[float]) -> float:
    """By how much the last third of a run is slower (above 0) than its first, relative."""
    third = max(1, len(values) // 3)
    start = median(values[:third])
    return median(values[-third:]) / start - 1 if start > 0 else 0.0


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
