"""Comparing many cases at once: each case's spread leans on that of the others. Source and figures: docs/analysis.md.

With three runs a side, a case's own spread is known so badly that a t-test finds little. The spreads of all cases
together say what is usual, and how much cases differ in it (empirical Bayes, Smyth 2004). A case's spread is then the
weighted mean of its own and the usual one, never less than its own. The weight is estimated too, so tests that use
this are made stricter by a factor that simulation says is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, variance

from vitscale.analysis.statistics import Contrast

MIN_CASES = 4  # with fewer, nobody can say how much spreads differ
STRICTER = 2.5  # p-values are multiplied by this
_LEAST = 1e-5  # of the middle spread; so that two runs that happen to be equal do not count as noiseless

Runs = Sequence[float]


def moderated(pairs: Sequence[tuple[Runs, Runs]]) -> list[Contrast] | None:
    """Contrasts of (above, below), each run twice at least; None if there are too few pairs, or no spread at all."""
    logs = [tuple([math.log(value) for value in side] for side in pair) for pair in pairs]
    own = [_pooled(a, b) for a, b in logs]
    middle = median(spread for spread, _ in own) if own else 0.0
    if len(pairs) < MIN_CASES or middle == 0:
        return None
    usual, weight = _usual([max(spread, _LEAST * middle) for spread, _ in own], [df for _, df in own])
    everything = sum(df for _, df in own)
    result = []
    for (above, below), (a, b), (spread, df) in zip(pairs, logs, own, strict=True):
        shared = usual if math.isinf(weight) else (weight * usual + df * spread) / (weight + df)
        error = math.sqrt(max(shared, spread) * (1 / len(a) + 1 / len(b)))
        ratio = median(above) / median(below)
        result.append(Contrast(ratio, fmean(a) - fmean(b), error, min(weight + df, everything)))
    return result


def _pooled(a: Runs, b: Runs) -> tuple[float, float]:
    """Variance within both sides, and its degrees of freedom."""
    df = len(a) + len(b) - 2
    return ((len(a) - 1) * variance(a) + (len(b) - 1) * variance(b)) / df, float(df)


def _usual(spreads: Sequence[float], dfs: Sequence[float]) -> tuple[float, float]:
    """The usual variance and the degrees of freedom it is worth: moments of the log of scaled F (Smyth 2004)."""
    from scipy.special import polygamma, psi

    logs = [math.log(s) - float(psi(df / 2)) + math.log(df / 2) for s, df in zip(spreads, dfs, strict=True)]
    excess = variance(logs) - fmean(float(polygamma(1, df / 2)) for df in dfs)
    if excess <= 0:  # cases differ in spread by no more than chance: all are worth one
        return sum(s * df for s, df in zip(spreads, dfs, strict=True)) / sum(dfs), math.inf
    weight = 2 * _trigamma_inverse(excess)
    return math.exp(fmean(logs) + float(psi(weight / 2)) - math.log(weight / 2)), weight


def _trigamma_inverse(value: float) -> float:
    """Solve trigamma(x) = value by Newton's steps on 1 / trigamma, which is nearly straight."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x
