"""Reading a profiler's trace: launches, kinds, the clock, what is skipped, and traces that tell nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from timeline import FakeProfile, Timeline, ns

from vitscale.measure.trace import DeviceEvent, Mark, TraceError, Tracer


def cuda_tracer(timeline: Timeline | str, *, keep: Path | None = None) -> Tracer:
    tracer = Tracer(torch.device("cuda", 0), keep)
    tracer._profile = FakeProfile(timeline)
    tracer._synchronised = (ns(1000), ns(1100))
    tracer.updates = [(ns(0), ns(500)), (ns(500), ns(1000))]
    return tracer


def whole() -> Timeline:
    line = Timeline()
    line.kernel(10, 20, launched=2)
    line.synchronise(1010, 1098)
    return line


def test_kernels_get_the_moment_of_their_launch_and_their_kind(tmp_path: Path) -> None:
    line = whole()
    line.nccl(30, 50, launched=25)
    line.copy(35, 45, launched=5)
    line.copy(60, 61, launched=55, name="Memcpy DtoD (Device -> Device)")
    line.kernel(70, 71, launched=69, name="Memset (Device)", category="gpu_memset")
    line.kernel(80, 90, launched=79, device=1)  # another rank's GPU, seen by this process
    line.nccl(95, 99, launched=92, name="AllGather_RING_SIMPLE")
    keep = tmp_path / "rank0.json.gz"
    trace = cuda_tracer(line, keep=keep).read(skip=1)
    assert trace.updates == [(ns(500), ns(1000))]
    assert trace.device == [
        DeviceEvent(ns(10), ns(20), ns(2), "kernel"),
        DeviceEvent(ns(30), ns(50), ns(25), "comm", "AllReduce"),
        DeviceEvent(ns(35), ns(45), ns(5), "copy"),
        DeviceEvent(ns(60), ns(61), ns(55), "kernel"),
        DeviceEvent(ns(70), ns(71), ns(69), "kernel"),
        DeviceEvent(ns(95), ns(99), ns(92), "comm", "AllGather"),
    ]
    assert len(json.loads(gzip.decompress(keep.read_bytes()))["traceEvents"]) == len(line.events)


def test_a_clock_that_is_not_the_hosts_is_found() -> None:
    tracer = cuda_tracer(whole())
    tracer._synchronised = (ns(1000 + 900), ns(1100 + 900))
    with pytest.raises(TraceError, match=r"0\.9 ms off"):
        tracer.read(skip=0)


def test_a_trace_without_the_hosts_calls_tells_nothing() -> None:
    line = whole()
    line.events = [event for event in line.events if event["cat"] != "cuda_runtime"]
    with pytest.raises(TraceError, match="no CUDA calls"):
        cuda_tracer(line).read(skip=0)


def test_lost_launches_are_found() -> None:
    line = whole()
    for _ in range(5):
        line.event("kernel", "gemm", 100, 110, correlation=99, device=0)
    with pytest.raises(TraceError, match="launches of 5 of 6"):
        cuda_tracer(line).read(skip=0)


def test_a_gpu_that_left_nothing_is_said() -> None:
    line = Timeline()
    line.synchronise(1010, 1098)
    with pytest.raises(TraceError, match="nothing of the GPU"):
        cuda_tracer(line).read(skip=0)


@pytest.mark.parametrize("text", ["", '{"traceEvents": []}', "[]", '{"traceEvents": [{"ph": "X"'])
def test_a_broken_file_is_said(text: str) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        cuda_tracer(text).read(skip=0)


def test_a_run_that_ended_early_is_said() -> None:
    with pytest.raises(TraceError, match="ended before"):
        cuda_tracer(whole()).read(skip=2)


def test_on_the_cpu_operators_and_collectives_of_the_update_are_kept() -> None:
    line = Timeline()
    line.event("cpu_op", "aten::mm", 10, 20)
    line.event("cpu_op", "aten::add", 15, 25)
    line.event("cpu_op", "aten::copy_", 40, 50, tid=9)  # in a thread of gloo: part of its collective
    line.event("cpu_op", "c10d::allreduce_", 30, 31)
    line.event("user_annotation", "gloo:all_reduce", 32, 60, tid=9)
    line.event("cpu_op", "c10d::allreduce_", 80, 81)  # a flag between two updates
    line.event("user_annotation", "gloo:all_reduce", 82, 130, tid=9)
    tracer = Tracer(torch.device("cpu"))
    tracer._profile = FakeProfile(line)
    tracer.updates = [(ns(0), ns(100))]
    tracer.marks = [Mark("forward", ns(5), ns(26)), Mark("backward", ns(28), ns(70)), Mark("data_wait", ns(90), ns(95))]
    trace = tracer.read(skip=0)
    assert trace.operators == [(ns(10), ns(25))]
    assert trace.in_flight == [(ns(32), ns(60))]
    assert trace.issues == [(ns(30), "c10d::allreduce_")]
    assert [trace.phase_at(ns(moment)) for moment in (4, 5, 25.9, 26, 50, 94, 95)] == [
        "", "forward", "forward", "", "backward", "data_wait", "",
    ]  # fmt: skip


def test_the_real_profiler_keeps_the_hosts_wall_clock() -> None:
    """What attribution rests on: an operator between two looks at the clock stands between them in the trace."""
    import time

    tracer = Tracer(torch.device("cpu"))
    tracer.start()
    time.sleep(0.002)
    moments = []
    for _ in range(5):
        begin = time.time_ns()
        torch.ones(200, 200) @ torch.ones(200, 200)
        moments.append((begin, time.time_ns()))
        time.sleep(0.002)
    tracer.stop()
    tracer.updates = [(moments[0][0] - 10**6, moments[-1][1] + 10**6)]
    trace = tracer.read(skip=0)
    inside = [any(b - 50_000 <= begin and end <= e + 50_000 for b, e in moments) for begin, end in trace.operators]
    assert len(inside) >= 5
    assert all(inside)
