"""config.batch: the identity is solved from any two keys, and what cannot hold is refused with triples that can."""

from __future__ import annotations

import itertools
import re

import pytest

from vitscale.config.batch import BatchTriple, nearest_triples, solve_batch
from vitscale.config.run import TrainConfig
from vitscale.errors import ConfigError


def solve(size: int, **keys: int) -> BatchTriple:
    return solve_batch(TrainConfig(epochs=1, **keys), size)


@pytest.mark.parametrize(
    ("size", "keys", "expected"),
    [
        (4, {"micro_batch_size": 8, "grad_accum_steps": 2}, (8, 2, 64)),
        (4, {"micro_batch_size": 8, "global_batch_size": 64}, (8, 2, 64)),
        (4, {"grad_accum_steps": 2, "global_batch_size": 64}, (8, 2, 64)),
        (4, {"micro_batch_size": 8, "grad_accum_steps": 2, "global_batch_size": 64}, (8, 2, 64)),
        (2, {"global_batch_size": 64}, (32, 1, 64)),
        (2, {"micro_batch_size": 5}, (5, 1, 10)),
        (2, {"grad_accum_steps": 3}, (32, 3, 192)),
        (2, {}, (32, 1, 64)),
    ],
)
def test_what_is_not_given_follows(size: int, keys: dict[str, int], expected: tuple[int, int, int]) -> None:
    assert solve(size, **keys) == expected


def test_every_solution_holds_and_keeps_what_was_given() -> None:
    values = (None, 1, 2, 3, 8)
    for size, micro, accum, total in itertools.product((1, 2, 3, 8), values, values, (None, 1, 6, 24, 48)):
        given = {"micro_batch_size": micro, "grad_accum_steps": accum, "global_batch_size": total}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            triple = solve(size, **given)
        except ConfigError:
            assert total is not None  # without a global batch there is always a solution
            assert not (micro and accum and micro * accum * size == total)
            continue
        assert triple.micro_batch_size * triple.grad_accum_steps * size == triple.global_batch_size
        assert {name: getattr(triple, name) for name in given} == given


@pytest.mark.parametrize(
    ("size", "keys"),
    [
        (2, {"micro_batch_size": 8, "grad_accum_steps": 2, "global_batch_size": 64}),
        (3, {"global_batch_size": 32}),
        (1, {"micro_batch_size": 6, "global_batch_size": 32}),
        (2, {"grad_accum_steps": 3, "global_batch_size": 32}),
        (8, {"global_batch_size": 4}),
    ],
)
def test_what_cannot_hold_names_the_keys_and_offers_triples_that_can(size: int, keys: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        solve(size, **keys)
    sentence = str(caught.value)
    for name, value in keys.items():
        assert f"train.{name}={value}" in sentence
    offered = re.findall(r"\((\d+), (\d+), (\d+)\)", sentence)
    assert offered
    for micro, accum, total in (map(int, triple) for triple in offered):
        again = {"micro_batch_size": micro, "grad_accum_steps": accum, "global_batch_size": total}
        assert solve(size, **again) == (micro, accum, total)


def test_one_device_is_not_called_devices() -> None:
    with pytest.raises(ConfigError, match=r"cannot hold on 1 device:"):
        solve(1, micro_batch_size=5, global_batch_size=32)


def test_triples_that_keep_the_global_batch_come_first_and_the_nearest_of_them_first() -> None:
    triples = nearest_triples(96, 2, micro=10, accum=1)
    assert triples[0] in ((8, 6, 96), (12, 4, 96))
    assert {t.global_batch_size for t in triples[:2]} == {96}


def test_where_the_global_batch_cannot_be_kept_both_neighbours_are_offered() -> None:
    assert {t.global_batch_size for t in nearest_triples(10, 4, micro=2, accum=1)[:2]} == {8, 12}
