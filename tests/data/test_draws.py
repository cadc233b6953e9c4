"""Keyed draws: repeatable, apart from each other, uniform, and fixed for good."""

import numpy as np

from vitscale.data.draws import Purpose, beta, permutation, uniform, words


def test_draws_repeat_and_keys_differ() -> None:
    keys = [(0, Purpose.MIX, 5), (0, Purpose.MIX, 6), (1, Purpose.MIX, 5), (0, Purpose.ORDER, 5)]
    drawn = [words(*key, 64).tolist() for key in keys]
    assert drawn == [words(*key, 64).tolist() for key in keys]
    assert len({number for row in drawn for number in row}) == 4 * 64


def test_uniform_fills_the_unit_interval() -> None:
    values = uniform(0, Purpose.DROP_PATH, 0, (200_000,))
    assert values.dtype == np.float32
    assert 0 <= values.min() < 1e-4
    assert 1 - 1e-4 < values.max() < 1
    assert abs(values.mean() - 0.5) < 3e-3


def test_more_draws_begin_with_the_fewer() -> None:
    assert uniform(7, Purpose.MIX, 1, (3, 2)).tolist() == uniform(7, Purpose.MIX, 1, (9, 2))[:3].tolist()


def test_permutation_is_one() -> None:
    order = permutation(0, Purpose.ORDER, 0, 1000)
    assert sorted(order.tolist()) == list(range(1000))


def test_beta_has_the_spread_of_its_alpha() -> None:
    for alpha in (0.2, 1.0, 4.0):
        values = beta(0, Purpose.MIXUP_LAMBDA, 0, alpha, 50_000)
        assert abs(values.mean() - 0.5) < 0.01
        assert abs(values.var() - 1 / (4 * (2 * alpha + 1))) < 0.005


def test_the_meaning_of_a_seed_is_fixed() -> None:
    """A change here changes the augmentation of every run that is resumed."""
    assert words(0, Purpose.ORDER, 0, 2).tolist() == [11203925021116910928, 9292188272879797859]
