"""To which phase an instant belongs, on hand-made time lines whose answer is known; nothing is counted twice."""

from __future__ import annotations

import random

import pytest

from vitscale.measure.attribution import (
    BRIDGE_NS,
    Arrival,
    arrivals_of,
    device_seconds,
    device_window,
    exposed_by_phase,
    in_collectives,
    latest_arrivals,
    waits_of,
    without_communication,
)
from vitscale.measure.intervals import length
from vitscale.measure.trace import DeviceEvent, Mark, Trace

S = 10**9


def gpu(*events: tuple[int, int, int] | tuple[int, int, int, str], marks: str = "", updates: int = 1) -> Trace:
    """events: (begin, end, launched[, kind]) in seconds; marks: "forward 0-10, backward 10-20"; one update is 100 s."""
    device = [
        DeviceEvent(e[0] * S, e[1] * S, e[2] * S, *(("comm", "AllReduce") if len(e) > 3 and e[3] == "comm" else e[3:]))
        if len(e) > 3
        else DeviceEvent(e[0] * S, e[1] * S, e[2] * S, "kernel")
        for e in events
    ]
    return Trace([(100 * i * S, 100 * (i + 1) * S) for i in range(updates)], marked(marks), device=sorted(device))


def marked(text: str) -> list[Mark]:
    found = []
    for part in filter(None, text.split(", ")):
        phase, times = part.split()
        begin, end = times.split("-")
        found.append(Mark(phase, int(begin) * S, int(end) * S))
    return found


def told(trace: Trace, waits: list[tuple[int, int]] | None = None) -> dict[str, float]:
    scaled = None if waits is None else [(begin * S, end * S) for begin, end in waits]
    seconds, _ = device_seconds(trace, scaled)
    return {name: round(value, 6) for name, value in seconds.items() if value}


# --- a GPU ------------------------------------------------------------------------------------------------------------


def test_a_kernel_belongs_to_the_phase_that_launched_it_not_to_the_one_it_runs_in() -> None:
    trace = gpu((0, 60, 5), (60, 100, 15), marks="forward 0-10, backward 10-20, data_wait 20-100")
    assert told(trace) == {"forward": 60, "backward": 40}


def test_communication_counts_where_no_kernel_runs() -> None:
    trace = gpu((0, 40, 5), (30, 70, 15, "comm"), (60, 100, 16), marks="forward 0-10, backward 10-20")
    assert told(trace) == {"forward": 40, "exposed_comm": 20, "backward": 40}
    assert in_collectives(trace) == 40


def test_waiting_for_the_last_rank_is_apart_from_communication() -> None:
    trace = gpu((0, 40, 5), (30, 70, 15, "comm"), (70, 100, 16), marks="forward 0-10, backward 10-20")
    assert told(trace, [(30, 55)]) == {"forward": 40, "straggler_wait": 15, "exposed_comm": 15, "backward": 30}


def test_a_starved_device_waits_for_data() -> None:
    marks = "optimizer 0-10, data_wait 12-50, forward 50-60"
    trace = gpu((0, 20, 5), (52, 100, 51), marks=marks)
    assert told(trace) == {"optimizer": 20, "data_wait": 30, "forward": 50}
    assert device_seconds(trace, None)[1] == 32


def test_data_wait_behind_work_of_the_device_costs_nothing() -> None:
    trace = gpu((0, 60, 5), (60, 100, 55), marks="optimizer 0-10, data_wait 10-50, forward 50-60")
    assert told(trace) == {"optimizer": 60, "forward": 40}


def test_a_gap_before_a_kernel_that_was_launched_long_ago_is_its_own_phases() -> None:
    trace = gpu((0, 40, 5), (45, 100, 8), marks="forward 0-10, data_wait 10-100")
    assert told(trace) == {"forward": 100}


def test_a_host_that_is_slow_between_phases_is_other_and_inside_one_it_is_that_phase() -> None:
    trace = gpu((0, 10, 1), (40, 100, 40), marks="optimizer 0-12, forward 30-60")
    assert told(trace) == {"optimizer": 12, "other": 18, "forward": 70}


def test_copies_count_where_nothing_else_runs() -> None:
    marks = "host_to_device 0-5, forward 5-20"
    trace = gpu((0, 30, 1, "copy"), (10, 50, 6), (45, 60, 7, "comm"), (55, 80, 8, "copy"), (70, 100, 9), marks=marks)
    # The second copy was launched in forward, and lies behind communication first.
    assert told(trace) == {"host_to_device": 10, "forward": 40 + 10 + 30, "exposed_comm": 10}


def test_kernels_of_two_phases_at_once_count_once() -> None:
    trace = gpu((0, 60, 5), (40, 100, 15), marks="forward 0-10, optimizer 10-20")
    assert told(trace) == {"forward": 40, "optimizer": 60}


def test_the_window_begins_when_the_work_before_it_is_done_and_ends_with_its_own() -> None:
    before = DeviceEvent(-20 * S, 30 * S, -30 * S, "kernel")
    mine = DeviceEvent(30 * S, 140 * S, 50 * S, "kernel")
    after = DeviceEvent(140 * S, 190 * S, 120 * S, "kernel")
    trace = Trace([(0, 100 * S)], marked("forward 0-100"), device=[before, mine, after])
    assert device_window(trace) == [(30 * S, 140 * S)]
    assert told(trace) == {"forward": 110}


def test_an_evaluation_between_two_updates_is_in_no_window() -> None:
    device = [DeviceEvent(i * S, (i + 10) * S, i * S, "kernel") for i in range(0, 300, 10)]
    trace = Trace(
        [(0, 100 * S), (200 * S, 300 * S)], marked("forward 0-100, evaluate 100-200, forward 200-300"), device
    )
    assert told(trace) == {"forward": 100}


@pytest.mark.parametrize("seed", range(60))
def test_the_parts_are_a_partition_of_the_window(seed: int) -> None:
    rng = random.Random(seed)
    updates = [(i * 1000, (i + 1) * 1000) for i in range(10)]
    phases = ["data_wait", "host_to_device", "forward", "backward", "optimizer", "evaluate"]
    cuts = sorted(rng.sample(range(10_000), 60))
    marks = [Mark(rng.choice(phases), begin, end) for begin, end in zip(cuts[::2], cuts[1::2], strict=True)]
    device = []
    for _ in range(rng.randrange(1, 200)):
        launched = rng.randrange(-500, 11_000)
        begin = launched + rng.randrange(0, 800)
        kind = rng.choice(["kernel", "kernel", "copy", "comm"])
        device.append(DeviceEvent(begin, begin + rng.randrange(0, 300), launched, kind))
    trace = Trace(updates, marks, device=sorted(device))
    waits = waits_of([Arrival("a", begin) for begin in cuts], [cut + rng.randrange(0, 400) for cut in cuts])
    whole = length(device_window(trace)) / 1e9 / 10
    for known in (waits, None):
        seconds, idle = device_seconds(trace, known)
        assert sum(seconds.values()) == pytest.approx(whole, rel=1e-12)
        assert min(seconds.values()) >= 0
        assert 0 <= idle <= whole
    assert device_seconds(trace, None)[0]["exposed_comm"] == pytest.approx(
        device_seconds(trace, waits)[0]["exposed_comm"] + device_seconds(trace, waits)[0]["straggler_wait"]
    )


# --- arrivals ---------------------------------------------------------------------------------------------------------


def test_ranks_are_matched_by_kind_and_order() -> None:
    mine = [Arrival("AllGather", 5, 9), Arrival("AllReduce", 1, 8), Arrival("AllReduce", 20, 30)]
    other = [Arrival("AllGather", 3, 9), Arrival("AllReduce", 4, 8), Arrival("AllReduce", 28, 30)]
    latest = latest_arrivals([mine, other])
    assert latest == [5, 4, 28]
    assert waits_of(mine, [5, 4, 28]) == [(1, 4), (20, 28)]
    assert waits_of(other, [5, 4, 28]) == [(3, 5)]


def test_collectives_that_do_not_match_are_not_guessed() -> None:
    found = latest_arrivals([[Arrival("AllReduce", 1)], [Arrival("AllReduce", 1), Arrival("AllReduce", 2)]])
    assert isinstance(found, str)
    assert "different collectives" in found


def test_clocks_that_contradict_each_other_are_found() -> None:
    fast = [Arrival("AllReduce", i * S, i * S + 1000) for i in range(10)]
    late = [Arrival("AllReduce", i * S + 10**6, i * S + 10**6 + 1000) for i in range(10)]
    found = latest_arrivals([fast, late])  # over on one before the other began: impossible
    assert isinstance(found, str)
    assert "clocks disagree" in found


def test_collectives_outside_the_window_are_left_out() -> None:
    trace = gpu((10, 20, 5, "comm"), (120, 130, 110, "comm"), marks="backward 0-100")
    assert arrivals_of(trace) == [Arrival("AllReduce", 10 * S, 20 * S)]


# --- the CPU ----------------------------------------------------------------------------------------------------------


def cpu(operators: list[tuple[int, int]], in_flight: list[tuple[int, int]], marks: str) -> Trace:
    scaled = [[(begin * S, end * S) for begin, end in intervals] for intervals in (operators, in_flight)]
    return Trace([(0, 100 * S)], marked(marks), operators=scaled[0], in_flight=scaled[1])


def test_on_the_cpu_communication_counts_where_no_operator_runs() -> None:
    trace = cpu([(10, 40), (60, 70)], [(30, 65), (75, 80)], "forward 0-50, backward 50-72, data_wait 74-100")
    shares = exposed_by_phase(trace, [(45 * S, 55 * S)])
    assert shares["forward"] == {"exposed_comm": pytest.approx(0.1), "straggler_wait": pytest.approx(0.1)}
    assert shares["backward"] == {"exposed_comm": pytest.approx(5 / 22), "straggler_wait": pytest.approx(5 / 22)}
    assert "data_wait" not in shares  # nobody waits for a collective there


def test_short_pauses_between_operators_are_the_hosts_own() -> None:
    pauses = [(0, 10), (10 + BRIDGE_NS, 10**6), (10**6 + BRIDGE_NS + 1, 2 * 10**6)]
    trace = Trace([(0, 2 * 10**6)], [Mark("backward", 0, 2 * 10**6)], operators=pauses, in_flight=[(0, 2 * 10**6)])
    assert exposed_by_phase(trace, None)["backward"]["exposed_comm"] == pytest.approx((BRIDGE_NS + 1) / (2 * 10**6))


def test_taking_communication_out_keeps_the_sum() -> None:
    phases = {"data_wait": 1.0, "forward": 2.0, "backward": 4.0, "optimizer": 1.0, "other": 0.5}
    shares = {"backward": {"exposed_comm": 0.25, "straggler_wait": 0.5}, "optimizer": {"exposed_comm": 1.0}}
    seconds = without_communication(phases, shares)
    assert seconds["exposed_comm"] == 2.0
    assert seconds["straggler_wait"] == 2.0
    assert seconds["backward"] == 1.0
    assert seconds["optimizer"] == 0.0
    assert sum(seconds.values()) == sum(phases.values())
