"""Shared spreads: the weight follows how much cases differ in noise, and nothing is ever quieter than it was seen."""

from __future__ import annotations

import math
import random

import pytest

from vitscale.analysis.moderation import MIN_CASES, _trigamma_inverse, _usual, moderated
from vitscale.analysis.statistics import welch


def pairs(rng: random.Random, noises: list[float], runs: int = 3) -> list[tuple[list[float], list[float]]]:
    return [tuple([math.exp(rng.gauss(0, n)) for _ in range(runs)] for _ in "ab") for n in noises]  # type: ignore[misc]


def test_trigamma_is_inverted() -> None:
    from scipy.special import polygamma

    for value in (1e-4, 0.01, 0.5, 1.0, 30.0, 1e4):
        assert float(polygamma(1, _trigamma_inverse(value))) == pytest.approx(value, rel=1e-8)


def test_the_usual_spread_comes_back() -> None:
    """Spreads drawn from the model itself: scaled inverse chi-square of 8 degrees of freedom around 0.0004."""
    rng = random.Random(0)
    draw = lambda df: rng.gammavariate(df / 2, 2) / df  # noqa: E731
    spreads = [0.0004 / draw(8) * draw(4) for _ in range(4000)]
    usual, weight = _usual(spreads, [4.0] * len(spreads))
    assert usual == pytest.approx(0.0004, rel=0.05)
    assert weight == pytest.approx(8, rel=0.15)


def test_cases_alike_share_everything_and_unlike_cases_little() -> None:
    rng = random.Random(1)
    alike, unlike = moderated(pairs(rng, [0.01] * 40)), moderated(pairs(rng, [0.001, 0.1] * 20))
    assert alike is not None
    assert unlike is not None
    assert min(c.df for c in alike) > 40
    assert max(c.df for c in unlike) < 8


def test_no_case_becomes_quieter_than_its_own_runs() -> None:
    rng = random.Random(2)
    made = pairs(rng, [0.01] * 5 + [0.2])
    found = moderated(made)
    assert found is not None
    for contrast, (a, b) in zip(found, made, strict=True):
        assert contrast.error >= welch(a, b).error * (1 - 1e-12)  # equal numbers of runs: the same pooled spread
        assert contrast.ratio == welch(a, b).ratio


def test_few_cases_or_none_with_noise_have_nothing_to_share() -> None:
    rng = random.Random(3)
    assert moderated(pairs(rng, [0.01] * (MIN_CASES - 1))) is None
    assert moderated([([1.0, 1.0], [2.0, 2.0])] * 6) is None
    assert moderated([]) is None


def test_a_pair_of_equal_runs_is_not_noiseless() -> None:
    rng = random.Random(4)
    found = moderated([*pairs(rng, [0.01] * 6), ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])])
    assert found is not None
    assert found[-1].error > 0
