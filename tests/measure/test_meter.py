"""The meter over an engine that does nothing: stages, what is cut out, what it costs; no device is waited for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vitscale.measure import meter as meter_module
from vitscale.measure.device_state import DeviceWatch
from vitscale.measure.meter import LEAD_IN, Meter, compiled_graphs, recompiles
from vitscale.measure.trace import Tracer
from vitscale.phases import Part
from vitscale.results.record import PHASES, Measurement

CPU = torch.device("cpu")


def alone(value: Any) -> list[Any]:
    return [value]


def no_op_update(meter: Meter, micro_steps: int = 1, images: int = 8) -> None:
    """The phases of an update, as loader, engine and trainer mark them."""
    for phase in ("data_wait", "host_to_device", "host_to_device"):
        with meter.phase(phase):
            pass
    for _ in range(micro_steps):
        with meter.phase("forward"):
            pass
        with meter.phase("backward"):
            pass
    with meter.phase("optimizer"):
        pass
    meter.update(images)


def measured(meter: Meter, updates: int) -> Measurement:
    for _ in range(updates):
        no_op_update(meter)
    meter.finish(alone)
    return Measurement.model_validate(meter.result())


# --- stages -----------------------------------------------------------------------------------------------------------


def test_warm_up_is_kept_and_not_counted() -> None:
    meter = Meter(CPU, 0, 1, warmup=3, updates=5)
    assert meter.total_updates == 8
    result = measured(meter, 8)
    assert (len(result.warmup_step_time_s), len(result.step_time_s)) == (3, 5)
    assert result.images == (8,) * 5
    assert len(result.data_wait_s) == 5


def test_updates_after_the_end_are_ignored_and_an_early_end_leaves_what_there_is() -> None:
    assert len(measured(Meter(CPU, 0, 1, warmup=3, updates=5), 20).step_time_s) == 5
    assert len(measured(Meter(CPU, 0, 1, warmup=3, updates=5), 6).step_time_s) == 3
    result = measured(Meter(CPU, 0, 1, warmup=3, updates=5), 2)
    assert result.step_time_s == ()
    assert result.attribution is None
    assert result.attribution_missing == "the run ended before any update was counted"


def test_without_a_number_of_updates_all_that_follow_count() -> None:
    meter = Meter(CPU, 0, 1, warmup=0, updates=None)
    assert meter.total_updates is None
    assert len(measured(meter, 33).step_time_s) == 33


def test_traced_updates_come_last_or_right_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    seen = [0]
    monkeypatch.setattr(Tracer, "start", lambda self: order.append(f"start at {seen[0]}"))
    monkeypatch.setattr(Tracer, "stop", lambda self: order.append(f"stop at {seen[0]}"))
    for updates, expected in (
        (4, ["start at 6", f"stop at {16 + LEAD_IN}"]),
        (None, ["start at 2", f"stop at {12 + LEAD_IN}"]),
    ):
        order.clear()
        meter = Meter(CPU, 0, 2, warmup=2, updates=updates, trace=10)
        assert meter.total_updates == (None if updates is None else 16 + LEAD_IN)
        for update in range(1, 30):
            seen[0] = update
            no_op_update(meter)
        assert order == expected
        assert len(meter._tracer.updates) == 10 + LEAD_IN


def test_one_process_on_the_cpu_needs_no_trace() -> None:
    assert Meter(CPU, 0, 1, warmup=2, updates=4, trace=10).total_updates == 6


def test_a_short_trace_is_refused() -> None:
    with pytest.raises(AssertionError, match="at least 10"):
        Meter(CPU, 0, 1, warmup=0, updates=1, trace=5)


def test_evaluations_and_checkpoints_are_in_no_update() -> None:
    meter = Meter(CPU, 0, 1, warmup=1, updates=6)
    for index in range(7):
        if index == 3:
            with meter.phase("evaluate"):
                time.sleep(0.5)
            with meter.phase("checkpoint"):
                time.sleep(0.5)
        no_op_update(meter)
    meter.finish(alone)
    result = meter.result()
    assert len(result["step_time_s"]) == 6
    assert max(result["step_time_s"]) < 0.3


def test_the_device_is_not_watched_during_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(DeviceWatch, "start", lambda self: heard.append("start"))
    monkeypatch.setattr(DeviceWatch, "stop", lambda self: heard.append("stop"))
    meter = Meter(CPU, 0, 1, warmup=1, updates=2)
    for _ in range(3):
        with meter.phase("evaluate"):
            heard.append("evaluation")
        no_op_update(meter)
    # The first evaluation lies in the warm-up, where nobody watches.
    assert heard == ["evaluation", *("start", "stop", "evaluation") * 2, "start", "stop"]


def test_training_time_holds_all_updates_and_neither_evaluations_nor_the_opening_of_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tracer, "start", lambda self: time.sleep(0.3))
    monkeypatch.setattr(Tracer, "stop", lambda self: time.sleep(0.3))
    meter = Meter(CPU, 0, 2, warmup=2, updates=None, trace=10)
    for _ in range(2 + 10 + LEAD_IN + 3):
        with meter.phase("forward"):
            time.sleep(0.002)
        meter.update(8)
    with meter.phase("evaluate"):
        time.sleep(0.3)
    updates = [len(window) for window in meter._windows.values()]
    assert updates == [2, 3, 10 + LEAD_IN]
    assert 0.002 * sum(updates) < meter.trained_s() < 0.25


class Naps:
    """Sleeps, and keeps how long they really were."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def __call__(self, name: str, seconds: float) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        self.seconds[name] += time.monotonic() - begin


def test_slow_phases_land_in_their_places() -> None:
    meter, nap = Meter(CPU, 0, 1, warmup=1, updates=4), Naps()
    for update in range(5):
        if update == 1:
            nap.seconds.clear()
        with meter.phase("data_wait"):
            nap("data_wait", 0.010)
        with meter.phase("host_to_device"):
            nap("host_to_device", 0.005)
        for _ in range(2):
            with meter.phase("forward"):
                nap("forward", 0.010)
            with meter.phase("backward"):
                nap("backward", 0.015)
        with meter.phase("optimizer"):
            nap("optimizer", 0.008)
        nap("other", 0.008)
        meter.update(4)
    meter.finish(alone)
    result = Measurement.model_validate(meter.result())
    assert result.attribution is not None
    seconds = result.attribution.seconds
    expected = {name: nap.seconds[name] / 4 for name in PHASES}  # no communication: 0
    assert seconds == {name: pytest.approx(value, rel=0.1, abs=1e-3) for name, value in expected.items()}
    assert tuple(seconds) == PHASES
    assert result.attribution.method == "phases"
    assert result.attribution.unknown == {}
    assert "of an update is in none of the phases" in result.attribution.warnings[0]
    assert sum(seconds.values()) == pytest.approx(sum(result.step_time_s) / 4)
    assert sum(result.data_wait_s) == pytest.approx(nap.seconds["data_wait"], rel=0.1, abs=1e-3)


def test_a_step_that_is_one_launch() -> None:
    meter, nap = Meter(CPU, 0, 1, warmup=0, updates=3), Naps()
    for _ in range(3):
        with meter.phase("data_wait"):
            pass
        with meter.phase("step"):
            nap("step", 0.01)
        meter.update(4)
    meter.finish(alone)
    attribution = Measurement.model_validate(meter.result()).attribution
    assert attribution is not None
    assert tuple(attribution.seconds) == ("data_wait", "host_to_device", "step", "other")
    assert attribution.seconds["step"] == pytest.approx(nap.seconds["step"] / 3, rel=0.1)


class Event:
    """A device event at a known time."""

    waited = 0

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def elapsed_time(self, later: Event) -> float:
        return later.ms - self.ms

    def synchronize(self) -> None:
        Event.waited += 1


def test_the_parts_of_a_launch_are_read_in_traced_updates_only() -> None:
    """Reading waits for the device, which would change a counted update."""
    edges = [("forward", 0, 1), ("backward", 1, 3), ("forward", 3, 4), ("backward", 4, 6), ("optimizer", 6, 8)]
    parts = [Part(phase, Event(begin), Event(end)) for phase, begin, end in edges]
    Event.waited = 0
    meter = Meter(CPU, 0, 2, warmup=1, updates=3, trace=10)  # a second process, so that there is a traced stage
    assert meter.total_updates is not None
    for number in range(meter.total_updates):
        with meter.phase("step"):
            pass
        meter.inside(parts)
        meter.update(4)
        if number == 3:
            assert Event.waited == 0
    assert Event.waited == meter.total_updates - 4
    assert meter._inside.shares() == pytest.approx({"forward": 0.25, "backward": 0.5, "optimizer": 0.25})
    meter.finish(lambda value: [value, value])
    attribution = Measurement.model_validate(meter.result()).attribution
    assert attribution is not None
    assert attribution.seconds["backward"] == pytest.approx(2 * attribution.seconds["forward"])


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_steps", [1, 4])
def test_an_update_costs_less_than_50_microseconds(micro_steps: int) -> None:
    best = float("inf")
    for _ in range(5):
        meter = Meter(CPU, 0, 1, warmup=10, updates=500)
        begin = time.perf_counter()
        for _ in range(510):
            no_op_update(meter, micro_steps)
        best = min(best, (time.perf_counter() - begin) / 510)
    assert best < 50e-6


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts everything by which a host waits for a device; CUDA itself is played by fakes."""
    counted: Counter[str] = Counter()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = time.monotonic()

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            counted["event.synchronize"] += 1

        def elapsed_time(self, other: Event) -> float:
            return (other.at - self.at) * 1e3

    def count(name: str, result: Any = None) -> Callable[..., Any]:
        def called(*args: object, **kwargs: object) -> Any:
            counted[name] += 1
            return result

        return called

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", count("synchronize"))
    monkeypatch.setattr(torch.Tensor, "item", count("item", 0.0))
    monkeypatch.setattr(torch.Tensor, "cpu", count("cpu"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 9)
    monkeypatch.setattr("vitscale.measure.device_state.load_nvml", lambda: None)
    return counted


def test_on_the_cpu_no_update_waits_for_a_device(waits: Counter[str]) -> None:
    meter = Meter(CPU, 0, 1, warmup=5, updates=200)
    for _ in range(205):
        no_op_update(meter)
    assert waits == {}
    meter.finish(alone)
    assert waits == {}


@pytest.mark.parametrize("updates", [20, 300])
def test_on_a_gpu_the_host_waits_at_the_ends_of_stages_only(waits: Counter[str], updates: int) -> None:
    meter = Meter(torch.device("cuda", 0), 0, 1, warmup=5, updates=updates)
    for _ in range(5 + updates):
        no_op_update(meter)
    events = waits.pop("event.synchronize", 0)
    assert waits == {"synchronize": 2}
    assert events <= 5 + updates  # each of an update the device had passed already: Edge.since waits for nothing then
    meter.finish(alone)
    result = Measurement.model_validate(meter.result())
    assert len(result.step_time_s) == updates
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == ((7,), (9,))
    assert result.attribution is not None
    assert result.attribution.method == "phases"
    assert "no updates were traced" in result.attribution.warnings[0]


def test_events_that_the_device_has_not_passed_are_left_alone(
    waits: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: False)
    meter = Meter(torch.device("cuda", 0), 0, 1, warmup=5, updates=300)
    for _ in range(305):
        no_op_update(meter)
    assert waits["event.synchronize"] == 0


def test_only_the_first_counted_updates_are_timed_phase_by_phase_on_a_gpu(waits: Counter[str]) -> None:
    meter = Meter(torch.device("cuda", 0), 0, 1, warmup=5, updates=100)
    for _ in range(105):
        no_op_update(meter)
    assert len(meter._windows["counted"]._spans) == meter_module.SPANNED
    meter.finish(alone)
    assert meter.result()["attribution"]["updates"] == meter_module.SPANNED
    assert all(len(spans) == 6 for _, _, spans in meter._windows["counted"]._spans)


# --- recompiles -------------------------------------------------------------------------------------------------------


def test_graphs_made_while_counting_are_recompiles() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compiler.reset()
    compiled = torch.compile(double, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    before = compiled_graphs()
    assert before is not None
    compiled(torch.ones(3))
    assert recompiles(before) == 0
    compiled(torch.ones(4))
    assert recompiles(before) == 1


def test_what_a_first_evaluation_compiles_is_no_recompile(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [1]
    monkeypatch.setattr(meter_module, "compiled_graphs", lambda: graphs[0])
    meter = Meter(CPU, 0, 1, warmup=1, updates=3)
    no_op_update(meter)
    with meter.phase("evaluate"):
        graphs[0] += 12
    no_op_update(meter)
    graphs[0] += 2  # between evaluations: an update paid for it
    no_op_update(meter)
    assert measured(meter, 1).recompiles == 2
