"""The meter on a GPU, against work whose length is known, and its two ways of sharing out time against each other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscale.measure.meter import Meter
from vitscale.results.record import Attribution, Measurement
from vitscale.study.case import Job
from vitscale.study.runner import run_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
STARVED_S = 0.030  # the loader's sleep, which the device's work covers in part
FORWARD, BACKWARD, OPTIMIZER = 20, 40, 10  # kernels


def alone(value: Any) -> list[Any]:
    return [value]


class Work:
    """Kernels that only wait, 0.2 ms or so each: no clock slows down under them. Their time is measured apart."""

    def __init__(self) -> None:
        self(200)
        times = []
        for _ in range(20):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self(50)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / 50)
        self.seconds = statistics.median(times)  # of one kernel

    def __call__(self, kernels: int) -> None:
        for _ in range(kernels):
            torch.cuda._sleep(400_000)


def run(meter: Meter, work: Work, *, starve_s: float) -> Measurement:
    source = torch.ones(1024, pin_memory=True)
    assert meter.total_updates is not None
    for _ in range(meter.total_updates):
        with meter.phase("data_wait"):
            time.sleep(starve_s)
        with meter.phase("host_to_device"):
            source.to("cuda", non_blocking=True)
        with meter.phase("forward"):
            work(FORWARD)
        with meter.phase("backward"):
            work(BACKWARD)
        with meter.phase("optimizer"):
            work(OPTIMIZER)
        meter.update(8)
    meter.finish(alone)
    return Measurement.model_validate(meter.result())


def check_known_work(attribution: Attribution, work: Work, starved: float, step_s: float) -> None:
    expected = {
        "data_wait": starved,
        "forward": FORWARD * work.seconds,
        "backward": BACKWARD * work.seconds,
        "optimizer": OPTIMIZER * work.seconds,
    }
    found = {name: attribution.seconds[name] for name in expected}
    assert found == {name: pytest.approx(value, rel=0.1, abs=3e-4) for name, value in expected.items()}
    assert sum(attribution.seconds.values()) == pytest.approx(step_s, rel=0.05)
    assert attribution.seconds["exposed_comm"] == attribution.seconds["straggler_wait"] == 0


@pytest.mark.parametrize("starve_s", [STARVED_S, 0.0])
def test_known_work_lands_in_its_phases(starve_s: float, tmp_path: Path) -> None:
    work = Work()
    busy = (FORWARD + BACKWARD + OPTIMIZER) * work.seconds
    keep = tmp_path / "trace.json.gz"
    meter = Meter(torch.device("cuda", 0), 0, 1, warmup=5, updates=20, trace=12, keep_trace=keep)
    result = run(meter, work, starve_s=starve_s)
    assert keep.stat().st_size > 1000
    step_s = statistics.fmean(result.step_time_s)
    assert step_s == pytest.approx(max(busy, starve_s), rel=0.1, abs=5e-4)
    assert result.attribution is not None
    print(result.attribution)
    assert result.attribution.method == "trace", result.attribution.warnings
    # The device works on the update before while the loader sleeps, and starves for the rest; launching comes on top.
    starved = step_s - busy if starve_s > busy else 0.0
    check_known_work(result.attribution, work, starved, step_s)
    assert result.attribution.idle_s == pytest.approx(starved, rel=0.1, abs=5e-4)
    # The other way, by device events, was used in the same updates.
    by_events = {"exposed_comm": 0.0, "straggler_wait": 0.0, **meter._windows["counted"].phases(device=True)}
    check_known_work(Attribution(updates=20, method="phases", seconds=by_events), work, starved, step_s)
    assert result.peak_allocated_bytes[0] <= result.peak_reserved_bytes[0]


def measured(out: Path, **performance: Any) -> tuple[Meter, Measurement]:
    """A ViT-S that keeps the device busy."""
    from vitscale.config.load import build_config
    from vitscale.run import train

    meter = Meter(torch.device("cuda", 0), 0, 1, warmup=10, updates=30, trace=12)
    config = build_config(
        {
            "model": {"name": "vit_small_patch16_224", "num_classes": 10},
            "data": {"source": "synthetic"},
            "precision": {"compute": "bf16"},
            "train": {"micro_batch_size": 512, "max_updates": meter.total_updates},
            "eval": {"every_epochs": None},
            "log": {"every_updates": 1000},
            "performance": {"compile": False, **performance},
        }
    )
    train(config, out, device="cuda", recorder=meter, observers=[], conclude=False)
    return meter, Measurement.model_validate(meter.result())


def test_a_graph_is_shared_out_as_the_same_updates_without_it(tmp_path: Path) -> None:
    """The device is the bottleneck, so the launches that a graph saves cost nothing here."""
    _, plain = measured(tmp_path / "plain", cuda_graph=False)
    _, graphed = measured(tmp_path / "graphed", cuda_graph=True)
    assert plain.attribution is not None
    assert graphed.attribution is not None
    print(plain.attribution, graphed.attribution)
    assert graphed.attribution.unknown == {}
    for phase in ("forward", "backward", "optimizer"):
        expected = pytest.approx(plain.attribution.seconds[phase], rel=0.1, abs=1e-3)
        assert graphed.attribution.seconds[phase] == expected
    whole = sum(graphed.attribution.seconds.values())
    assert whole == pytest.approx(statistics.median(graphed.step_time_s), rel=0.05)
    # Reading the events costs the counted updates nothing.
    assert statistics.median(graphed.step_time_s) < 1.05 * statistics.median(plain.step_time_s)


def test_a_real_run_is_shared_out_the_same_in_both_ways(tmp_path: Path) -> None:
    """Forward, backward and optimizer by the trace and by events at their edges."""
    meter, result = measured(tmp_path / "run", cuda_graph=False)
    assert result.attribution is not None
    print(result)
    assert result.attribution.method == "trace", result.attribution.warnings
    events = meter._windows["counted"].phases(device=True)
    for phase in ("forward", "backward", "optimizer"):
        assert result.attribution.seconds[phase] == pytest.approx(events[phase], rel=0.1, abs=3e-4)
    whole = sum(result.attribution.seconds.values())
    assert whole == pytest.approx(statistics.median(result.step_time_s), rel=0.05)
    assert result.attribution.seconds["other"] < 0.05 * whole
    assert result.attribution.seconds["data_wait"] < 0.05 * whole
    assert len(result.attribution.traced_step_time_s) == 12
    assert result.peak_allocated_bytes[0] > 10**9
    if result.device_state:  # where NVML is installed
        state = result.device_state[0]
        assert state.power_w is None or 50 < state.power_w < 2000
        assert state.sm_clock_mhz is None or 200 < state.sm_clock_mhz < 4000
        assert state.energy_j is None or state.energy_j > 0


def test_no_update_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    synchronize: Callable[..., None] = torch.cuda.synchronize
    calls = []

    def counted(*args: Any) -> None:
        calls.append(args)
        synchronize(*args)

    monkeypatch.setattr(torch.cuda, "synchronize", counted)
    counts = []
    for updates in (20, 60):
        calls.clear()
        run(Meter(torch.device("cuda", 0), 0, 1, warmup=5, updates=updates), Work(), starve_s=0.0)
        counts.append(len(calls))
    assert counts[0] == counts[1] <= 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_two_gpus_tell_a_straggler_from_communication(tmp_path: Path) -> None:
    """Rank 1 works longer before an all-reduce of known length: see meter_cuda_worker."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    outcome = run_job(Job("nccl", "meter_cuda_worker", {}, 2, timeout_s=200, env={"PYTHONPATH": path}), tmp_path)
    assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
    assert outcome.result is not None
    print(outcome.result)
    attribution = Measurement.model_validate(outcome.result["measurement"]).attribution
    assert attribution is not None
    assert attribution.method == "trace", attribution.unknown
    assert attribution.unknown == {}
    late, reduce_s = outcome.result["late_s"], outcome.result["all_reduce_s"]
    first, second = attribution.by_rank
    assert first["straggler_wait"] == pytest.approx(late, rel=0.1, abs=3e-4)
    assert second["straggler_wait"] < 0.1 * late
    for rank in (first, second):
        assert rank["exposed_comm"] == pytest.approx(reduce_s, rel=0.15, abs=3e-4)
    assert second["backward"] - first["backward"] == pytest.approx(late, rel=0.1, abs=3e-4)
    assert len(attribution.traced_step_time_s) == 12
