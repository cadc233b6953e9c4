"""The line of an all-reduce and what follows from it, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from vitscale.estimate.buckets import Bucket, Traffic
from vitscale.estimate.network import Forecast, Line, Link, Loading, Point, StepCost, fit_link, line_of

MB = 10**6
LINK = Link(0.001, 100 * MB)
COST = StepCost(Line(0.002, 0.001), Line(0.004, 0.002), 0.01)  # 6 ms + 3 ms an image, then 10 ms
AFTER = Traffic((Bucket(10 * MB, 1.0),))  # 101 ms behind backward


def points(alpha: float, beta: float) -> list[Point]:
    return [Point(size, alpha + size / beta) for size in (4096, 65536, 2**20, 2**22, 2**24)]


def test_a_line_is_found_and_its_error_is_told() -> None:
    link = fit_link(points(0.002, 12.5 * MB))
    assert link is not None
    assert link.alpha_s == pytest.approx(0.002, rel=1e-3)
    assert link.beta_bytes_per_s == pytest.approx(12.5 * MB, rel=1e-3)
    assert link.worst < 1e-3
    assert link.seconds(25 * MB) == pytest.approx(2.002, rel=1e-3)


def test_one_disturbed_point_and_the_small_ones_do_not_turn_it() -> None:
    disturbed = points(0.002, 12.5 * MB)
    disturbed[0] = Point(4096, 0.00001)
    disturbed[3] = Point(2**22, 3 * disturbed[3].seconds)
    link = fit_link(disturbed)
    assert link is not None
    assert link.beta_bytes_per_s == pytest.approx(12.5 * MB, rel=0.03)
    assert link.worst > 0.5  # it says so


def test_small_messages_that_a_queue_takes_at_once_are_left_out() -> None:
    quick = [Point(size, 1e-5) for size in (2**10, 2**11, 2**12, 2**13, 2**14)]
    link = fit_link([*quick, *points(0.002, 12.5 * MB)[1:]])
    assert link is not None
    assert link.alpha_s == pytest.approx(0.002, rel=1e-3)
    assert link.worst < 1e-3


def test_a_point_that_was_too_quick_turns_it_as_little() -> None:
    disturbed = points(0.002, 12.5 * MB)
    disturbed[-1] = Point(2**24, disturbed[-1].seconds / 4)
    link = fit_link(disturbed)
    assert link is not None
    assert link.beta_bytes_per_s == pytest.approx(12.5 * MB, rel=0.1)


def test_a_burst_gives_no_negative_latency() -> None:
    """A queue takes the first bytes at once, so that times lie on a line that begins below zero."""
    sizes = (2**18, 2**20, 2**22, 2**24)
    link = fit_link([Point(size, (size - 2**17) / (12.5 * MB)) for size in sizes])
    assert link is not None
    assert link.alpha_s == 0
    assert link.beta_bytes_per_s == pytest.approx(12.5 * MB, rel=0.15)


def test_no_line_through_one_size_or_through_times_that_do_not_grow() -> None:
    assert fit_link([Point(2**20, 0.1), Point(2**20, 0.2)]) is None
    assert fit_link([Point(2**20, 0.4), Point(2**22, 0.1)]) is None


def test_a_line_of_two_batches_keeps_both_parts_positive() -> None:
    assert line_of((8, 0.018), (16, 0.034)) == pytest.approx((0.002, 0.002))
    assert line_of((8, 0.03), (16, 0.02)) == pytest.approx((0.02, 0.0))  # noise
    assert line_of((8, 0.01), (16, 0.05)) == pytest.approx((0.0, 0.05 / 16))
    assert line_of((8, 0.01), (8, 0.04)) == pytest.approx((0.0, 0.005))


def test_what_comes_after_backward_is_exposed() -> None:
    told = Forecast(COST, LINK, AFTER).predict(10, 3)
    assert told.compute_s == pytest.approx(3 * 0.036 + 0.01)
    assert told.exposed_s == told.communication_s == pytest.approx(0.101)
    assert told.step_s == pytest.approx(told.compute_s + 0.101)
    assert told.limit == "network" if told.exposed_s > told.compute_s else "device"


def test_a_bucket_hides_behind_the_rest_of_backward() -> None:
    early = Traffic((Bucket(2 * MB, 0.25), Bucket(1 * MB, 1.0)))
    told = Forecast(COST, LINK, early).predict(48)  # backward 100 ms: the first is through at 25 + 21 ms
    assert told.exposed_s == pytest.approx(0.011)
    assert told.communication_s == pytest.approx(0.032)
    told = Forecast(COST, LINK, early).predict(3)  # backward 10 ms: 2.5 + 21, then 11 more
    assert told.exposed_s == pytest.approx(0.0025 + 0.021 + 0.011 - 0.010)


def test_engines_that_send_at_every_micro_step_gain_nothing_by_accumulation() -> None:
    forecast = Forecast(COST, LINK, AFTER._replace(each_micro_step=True))
    assert forecast.predict(10, 3).exposed_s == pytest.approx(0.303)
    assert forecast.accumulation_for(10) is None


def test_break_even_is_the_first_below_the_share() -> None:
    forecast = Forecast(COST, LINK, AFTER)
    accum = forecast.accumulation_for(10)
    assert accum == 54  # (0.101 x 19 - 0.010) / 0.036 = 53.03
    assert forecast.predict(10, accum).exposed_share < 0.05 <= forecast.predict(10, accum - 1).exposed_share
    batch = forecast.batch_for()
    assert batch is not None
    assert forecast.predict(batch).exposed_share < 0.05 <= forecast.predict(batch - 1).exposed_share


def test_one_process_sends_nothing_and_a_free_step_never_hides_the_network() -> None:
    assert Forecast(COST).predict(8).exposed_s == 0
    assert Forecast(COST).batch_for() == 1
    free = StepCost(Line(0, 0), Line(0, 0), 0.001)
    assert Forecast(free, LINK, AFTER).accumulation_for(8) is None


def test_a_loader_beside_costs_only_what_it_is_slower() -> None:
    assert Forecast(COST, loading=Loading(1000, beside=True)).predict(10).loader_s == 0
    slow = Forecast(COST, loading=Loading(100, beside=True)).predict(10)
    assert slow.step_s == pytest.approx(0.1)
    assert slow.limit == "loader"
    inline = Forecast(COST, loading=Loading(1000, beside=False)).predict(10)
    assert inline.step_s == pytest.approx(0.046 + 0.010)


def test_a_device_that_waits_for_the_host_is_told_from_a_busy_one() -> None:
    assert Forecast(COST).predict(100).limit == "device"
    launches = StepCost(Line(0.01, 0.0001), Line(0.01, 0.0001), 0.001)
    assert Forecast(launches).predict(8).limit == "host"
