"""Intervals hold what they promise, on simulated runs; edge cases have no interval instead of a wrong one."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from vitscale.analysis.statistics import (
    Contrast,
    drift,
    joint,
    median_interval,
    noise_floor,
    ratio_interval,
    relative_spread,
    t_quantile,
    welch,
)


@pytest.mark.parametrize("runs", [2, 3, 5, 6, 7, 10])
def test_the_interval_of_a_median_covers_the_truth(runs: int) -> None:
    rng = random.Random(runs)
    trials, inside = 400, 0
    for _ in range(trials):
        found = median_interval([math.exp(rng.gauss(0, 0.02)) for _ in range(runs)])
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        inside += found.low <= 1 <= found.high
    assert inside / trials >= 0.93  # 0.95 less two standard errors of the simulation
    assert inside / trials <= 0.995  # and it must be able to miss


def test_one_run_has_no_interval() -> None:
    assert median_interval([3.0]) == (3.0, None, None)
    assert ratio_interval([3.0], [2.0, 2.1]) == pytest.approx((3.0 / 2.05, None, None))


def test_intervals_do_not_change_from_call_to_call() -> None:
    values = [1.0, 1.1, 0.9, 1.2, 0.95, 1.05, 1.01]
    assert median_interval(values) == median_interval(values)


def test_zeros_have_an_interval_too() -> None:
    assert median_interval([0.0, 0.0, 1.0]).value == 0.0


def test_equal_runs_give_a_point_and_no_division_by_zero() -> None:
    same = welch([2.0, 2.0, 2.0], [2.0, 2.0])
    assert same.interval() == (1.0, None, None)
    assert same.p_value() == 1.0
    assert same.smallest_seen() == math.inf


def test_welch_agrees_with_scipy() -> None:
    from scipy.stats import ttest_ind

    a, b = [1.0, 1.1, 1.3, 0.9], [1.4, 1.9, 1.2]
    found = welch(a, b)
    expected = ttest_ind([math.log(x) for x in a], [math.log(x) for x in b], equal_var=False)
    assert found.p_value() == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert found.interval()[1:] == pytest.approx((math.exp(low), math.exp(high)))
    assert found.ratio == median(a) / median(b)


def test_the_smallest_difference_is_found_nine_times_of_ten() -> None:
    """The promised power: 5 runs on each side, a true difference of just the size that is said to be seen."""
    error = 0.01 * math.sqrt(2 / 5)
    seen = math.log1p(Contrast(1.0, 0.0, error, 8).smallest_seen())
    rng = random.Random(0)
    trials = 600
    found = 0
    for _ in range(trials):
        a = [math.exp(rng.gauss(0, 0.01)) for _ in range(5)]
        b = [math.exp(rng.gauss(seen, 0.01)) for _ in range(5)]
        both = welch(b, a)
        found += both.p_value() < 0.05
    assert 0.86 <= found / trials <= 0.94


def test_a_joint_ratio_is_the_geometric_mean() -> None:
    parts = [Contrast(1.1, math.log(1.1), 0.02, 4), Contrast(1.0, 0.0, 0.02, 4)]
    both = joint(parts)
    assert both.ratio == pytest.approx(math.sqrt(1.1))
    assert both.error == pytest.approx(0.02 / math.sqrt(2))
    assert both.df == pytest.approx(8)


def test_the_noise_floor_is_the_pooled_least_significant_difference() -> None:
    cases = [[1.0, 1.02, 0.98], [2.0, 2.02, 2.06], [3.0]]
    noise = noise_floor(cases)
    assert noise is not None
    logs = [[math.log(x) for x in runs] for runs in cases[:2]]
    squares = sum((x - sum(runs) / 3) ** 2 for runs in logs for x in runs)
    spread = math.sqrt(squares / 4)
    assert noise.spread == pytest.approx(spread)
    assert (noise.df, noise.comparisons, noise.runs) == (4, 3, 3)
    assert math.log1p(noise.floor) == pytest.approx(t_quantile(1 - 0.025 / 3, 4) * spread * math.sqrt(2 / 3))
    assert noise_floor([[1.0], [2.0]]) is None


def test_equal_cases_rarely_differ_by_more_than_the_floor() -> None:
    rng = random.Random(4)
    studies, wrong = 300, 0
    for _ in range(studies):
        cases = [[math.exp(rng.gauss(0, 0.02)) for _ in range(3)] for _ in range(6)]
        noise = noise_floor(cases)
        assert noise is not None
        means = [math.exp(sum(math.log(x) for x in runs) / 3) for runs in cases]
        wrong += max(means) / min(means) - 1 > noise.floor
    assert wrong / studies <= 0.07  # 0.05 and a standard error and a half


def test_spread_and_drift_of_a_run() -> None:
    assert relative_spread([1.0, 1.0, 1.0, 1.0, 9.0]) == 0
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == pytest.approx(4 / 4.5 * 0.75, rel=0.2)
    assert drift([1.0] * 10 + [1.1] * 10) == pytest.approx(0.1)
    assert drift([1.0]) == 0


def test_runs_without_any_spread_are_no_certainty() -> None:
    found = welch([1.1, 1.1], [1.0, 1.0])
    assert found.identical
    assert found.p_value() == 1
    assert found.interval() == (1.1, None, None)
    assert not welch([1.1, 1.1], [1.0, 1.01]).identical
