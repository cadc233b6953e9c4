"""The arithmetic of unequal ranks: lines through two sizes, the best shares, when to change, who is a straggler."""

from __future__ import annotations

import math
from itertools import product

import pytest

from vitscale.errors import DeviceError
from vitscale.estimate.pace import (
    PATIENCE,
    OwnPace,
    Pace,
    Rebalancer,
    Straggler,
    StragglerWatch,
    best_shares,
    fit_pace,
    lockstep_s,
    own_update_s,
    propose,
)


def own(fixed: float, per_image: float) -> OwnPace:
    """A backward as long as two forwards."""
    return OwnPace(Pace(3 * fixed, 3 * per_image), Pace(fixed, per_image))


def test_a_fixed_cost_and_a_cost_per_image_are_told_apart() -> None:
    pace = fit_pace(4, 0.07, 16, 0.19)
    assert (pace.fixed_s, pace.per_image_s) == pytest.approx((0.03, 0.01))
    assert pace.seconds(10) == pytest.approx(0.13)


@pytest.mark.parametrize(("small_s", "fixed"), [(0.5, 0.2 * (1 - 1e-3)), (0.2, 0.2 * (1 - 1e-3)), (0.01, 0.0)])
def test_noise_makes_neither_part_negative(small_s: float, fixed: float) -> None:
    pace = fit_pace(4, small_s, 16, 0.2)
    assert pace.fixed_s == pytest.approx(fixed, abs=1e-12)
    assert pace.per_image_s > 0
    assert pace.seconds(16) == pytest.approx(0.2)


def test_one_size_alone_is_all_for_the_images() -> None:
    assert fit_pace(1, 0.1, 1, 0.1) == (0.0, pytest.approx(0.1), None)


@pytest.mark.parametrize(
    ("paces", "total", "expected"),
    [
        ((Pace(0, 1), Pace(0, 2)), 24, (16, 8)),
        ((Pace(0, 1), Pace(0, 4)), 20, (16, 4)),
        ((Pace(0, 1), Pace(0, 1), Pace(0, 1)), 9, (3, 3, 3)),
        ((Pace(6, 1), Pace(0, 2)), 24, (14, 10)),  # the first starts 6 s late: 20 s each
        ((Pace(0, 1), Pace(100, 1)), 8, (7, 1)),  # nobody is left without an image
        ((Pace(0, 1, 10), Pace(0, 2)), 24, (10, 14)),  # as many as its memory holds
    ],
)
def test_the_best_shares(paces: tuple[Pace, ...], total: int, expected: tuple[int, ...]) -> None:
    assert best_shares(paces, total) == expected


@pytest.mark.parametrize("unit", [1, 2])
def test_no_other_shares_end_sooner(unit: int) -> None:
    for seed in range(40):
        paces = [Pace((seed * k) % 5, 1 + (seed * 31 * k) % 7 / 3, None if k < 3 else 6) for k in (1, 2, 3)]
        found = best_shares(paces, 18, unit)
        assert sum(found) == 18
        assert all(share % unit == 0 for share in found)
        others = [s for s in product(range(unit, 19, unit), repeat=3) if sum(s) == 18 and s[2] <= 6]
        assert lockstep_s(paces, found) == pytest.approx(min(lockstep_s(paces, s) for s in others))


def test_devices_that_do_not_hold_the_batch_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"the devices hold about 7 images of a micro-step together, not 24"):
        best_shares([Pace(0, 1, 4), Pace(0, 1, 3)], 24)


def test_only_a_gain_that_pays_is_proposed() -> None:
    assert propose([Pace(0, 1.0), Pace(0, 1.04)], (16, 16)) is None
    found = propose([Pace(0, 1.0), Pace(0, 2.0)], (12, 12))
    assert found is not None
    assert (found.shares, found.gain) == ((16, 8), pytest.approx(0.5))


def test_shares_beyond_a_memory_are_left_though_it_costs_time() -> None:
    found = propose([Pace(0, 1.0, 10), Pace(0, 1.0)], (12, 12))
    assert found is not None
    assert found.shares == (10, 14)


# --- during a run -------------------------------------------------------------------------------------------------


def forwards(shares: tuple[int, ...], per_image: tuple[float, ...]) -> list[float]:
    return [n * s for n, s in zip(shares, per_image, strict=True)]


def test_a_change_must_pay_several_times_in_a_row() -> None:
    balancer = Rebalancer([own(0, 1), own(0, 1)], (12, 12), 1)
    slow, even = forwards((12, 12), (1, 2)), forwards((12, 12), (1, 1))
    heard = [balancer.hear((12, 12), f) for f in (even, slow, even, slow, even, even, slow, even)]
    assert heard == [None] * 8  # the median of three is hardly ever slow, and never for long
    found = [balancer.hear((12, 12), slow) for _ in range(PATIENCE + 2)]
    assert found[:2] == [None, None]
    assert found[-1] is not None
    assert found[-1].shares == (16, 8)


def test_what_slows_all_ranks_alike_changes_nothing() -> None:
    balancer = Rebalancer([own(0, 1), own(0, 2)], (16, 8), 1)
    assert all(balancer.hear((16, 8), [160.0, 160.0]) is None for _ in range(9))


def test_the_measured_fixed_cost_counts() -> None:
    """Rank 1 is slow to start and quick per image: unequal times per image alone are no reason to change."""
    balancer = Rebalancer([own(0, 1), own(10, 0.1)], (11, 13), 1)
    assert all(balancer.hear((11, 13), [11.0, 11.3]) is None for _ in range(9))


def test_short_micro_batches_and_silent_ranks_say_nothing() -> None:
    balancer = Rebalancer([own(0, 1), own(0, 1)], (12, 12), 1)
    for _ in range(9):
        assert balancer.hear((12, 3), [12.0, 30.0]) is None
        assert balancer.hear((12, 12), [12.0, 0.0]) is None


def test_after_a_change_it_begins_anew() -> None:
    balancer = Rebalancer([own(0, 1), own(0, 1)], (12, 12), 1)
    slow = forwards((12, 12), (1, 2))
    while (found := balancer.hear((12, 12), slow)) is None:
        pass
    balancer.change(found.shares)
    assert balancer.shares == (16, 8)
    assert balancer.hear((12, 12), slow) is None  # an interval that was under way
    assert all(balancer.hear((16, 8), [16.0, 16.0]) is None for _ in range(9))


def test_each_change_takes_twice_the_patience() -> None:
    """Times that swing with others' load do not make shares swing for ever."""
    balancer = Rebalancer([own(0, 1), own(0, 1)], (12, 12), 1)
    waited = []
    for swing in range(3):
        slow, count = (1, 2) if swing % 2 else (2, 1), 1
        while (found := balancer.hear(balancer.shares, forwards(balancer.shares, slow))) is None:
            count += 1
        waited.append(count)
        balancer.change(found.shares)
    assert waited == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE]


def test_a_straggler_is_told_once_with_its_first_update_and_its_cost() -> None:
    watch = StragglerWatch()
    even, slow = [0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.3, 0.1]
    heard = [watch.hear(first, slow if first > 20 else even, 0.35) for first in range(1, 72, 10)]
    assert heard[:4] == [None] * 4
    assert heard[4] == Straggler(2, 21, pytest.approx(0.2), 0.35)
    assert heard[5:] == [None] * 3


@pytest.mark.parametrize(
    ("own_s", "step_s"),
    [
        ([0.1, 0.12], 0.12),  # not much slower
        ([0.010, 0.015], 1.0),  # slower, but it hardly matters beside a long update
        ([0.1, math.nan], 0.2),  # not known
        ([0.1], 0.1),  # alone
    ],
)
def test_what_is_no_straggler(own_s: list[float], step_s: float) -> None:
    watch = StragglerWatch()
    assert all(watch.hear(first, own_s, step_s) is None for first in range(9))


def test_now_and_then_is_no_straggler() -> None:
    watch = StragglerWatch()
    for first in range(12):
        assert watch.hear(first, [0.1, 0.3 if first % 3 else 0.1], 0.3) is None


def test_own_time_of_an_update() -> None:
    assert own_update_s(8, 0.1, 0.05, 2, None) == pytest.approx(0.05 + 2 * 3 * 0.1)
    measured = OwnPace(Pace(0, 0.5), Pace(0, 0.1))
    assert own_update_s(8, 0.1, 0.05, 2, measured) == pytest.approx(0.05 + 2 * 5 * 0.1)
