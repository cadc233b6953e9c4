"""Weights become whole shares that sum to the batch, and weights that cannot are refused in a sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from vitscale.config.balance import divide
from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError


def config_of(balance: Any, micro: int = 16, **data: Any) -> RunConfig:
    train = {"micro_batch_size": micro, "epochs": 1}
    return build_config({"parallel": {"balance": balance}, "train": train, "data": data})


def shares(balance: Any, world_size: int = 2, **options: Any) -> tuple[int, ...]:
    return decide(config_of(balance, **options), world_size=world_size).shares


@pytest.mark.parametrize(
    ("weights", "total", "unit", "expected"),
    [
        ((1, 1), 32, 1, (16, 16)),
        ((2, 1), 32, 1, (21, 11)),  # 21.33 and 10.67: the larger remainder has the last one
        ((2, 1), 32, 2, (22, 10)),  # 10.67 and 5.33 pairs
        ((4, 2, 1, 1), 32, 1, (16, 8, 4, 4)),
        ((0.1, 0.2), 3, 1, (1, 2)),
        ((1, 1, 1), 96, 1, (32, 32, 32)),  # as floats, a third of 96 may be less than 32
        ((100, 1, 1), 8, 1, (6, 1, 1)),  # at least one each, from the one with the most
        ((1, 1, 1), 4, 1, (2, 1, 1)),  # equal remainders: the first
    ],
)
def test_largest_remainder_in_whole_units(weights: tuple, total: int, unit: int, expected: tuple) -> None:
    assert divide(weights, total, unit) == expected


def test_shares_sum_to_the_batch_and_are_near_their_quotas() -> None:
    for seed in range(200):
        weights = [1 + (seed * 7919 * (rank + 3)) % 97 for rank in range(5)]
        for unit in (1, 2):
            found = divide(weights, 120, unit)
            assert sum(found) == 120
            assert all(share % unit == 0 and share >= unit for share in found)
            assert all(abs(s - w / sum(weights) * 120) < 2 * unit for s, w in zip(found, weights, strict=True))


def test_no_balance_and_auto_begin_even() -> None:
    assert shares("none", 3) == shares("auto", 3) == (16, 16, 16)


def test_weights_decide_and_the_batch_identity_stays() -> None:
    decisions = decide(config_of([3, 1]), world_size=2)
    assert decisions.shares == (24, 8)
    assert decisions.batch == (16, 1, 32)
    assert {r.key: r.value for r in decisions.reasons}["parallel.balance"] == "24, 8"


def test_pairs_stay_whole_where_images_are_mixed() -> None:
    assert shares([2, 1], mixup=0.5) == (22, 10)


@pytest.mark.parametrize(
    ("balance", "world_size", "sentence"),
    [
        ([2, 1], 3, "parallel.balance has 2 weights for 3 processes; give one per process, in the order of the ranks"),
        ([1], 2, "parallel.balance has 1 weight for 2 processes"),
        ([2, 1], 1, "parallel.balance has 2 weights for 1 process;"),
        ([0, 0], 2, "the weights of parallel.balance sum to nothing"),
        ([], 2, "the weights of parallel.balance sum to nothing"),
        ([1, 0], 2, "parallel.balance gives rank 1 the weight 0, which leaves it no image"),
        ([-1, 2], 2, "parallel.balance gives rank 0 the weight -1; a weight is a number above 0"),
        ([math.nan, 1], 2, "parallel.balance=[nan, 1] must be one of none, auto, or a list, each a number"),
        ([math.inf, 1], 2, "parallel.balance=[inf, 1] must be one of none, auto, or a list, each a number"),
        ("fast", 2, "parallel.balance=fast must be one of none, auto, or a list, each a number"),
        ([1000, 1], 2, "parallel.balance leaves rank 1 0.032 of the 32 images of a micro-step, which is none"),
    ],
)
def test_weights_that_cannot_be(balance: Any, world_size: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shares(balance, world_size)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
