"""A trace of some updates by torch's profiler, and what attribution needs of it.

In: the moments at which the recorder was told of phases and updates. Out: a `Trace`: host phases, what the device ran
and when the host launched it, collectives. All times are nanoseconds of the host's wall clock, which is the profiler's
clock too; where the trace itself shows that it is not, `TraceError` says so. On a GPU only the device's activity and
the CUDA calls are recorded, since recording each operator would slow the host that launches them; on the CPU the
operators are the work.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from vitscale.measure.intervals import Interval, Intervals, merged

COMPUTING = ("optimizer", "backward", "forward", "step")
"""Phases that compute and communicate; where kernels of several run at once, the one that counts first."""
CLOCK_TOLERANCE_NS = 200_000
_COMMUNICATION = re.compile(r"nccl\w*kernel_([a-z]+)", re.IGNORECASE)


class TraceError(Exception):
    """A trace from which nothing can be told; the message says why."""


class Mark(NamedTuple):
    """A phase of the host."""

    phase: str
    begin: int
    end: int


class DeviceEvent(NamedTuple):
    """Something a GPU ran. launched: when the host asked for it. kind: kernel, copy, or comm."""

    begin: int
    end: int
    launched: int
    kind: str
    collective: str = ""


@dataclass
class Trace:
    """updates: when the host began and ended each traced update. device is empty on the CPU, and what follows it on a
    GPU: operators (of the threads that compute), in_flight (collectives, from start to end) and issues (when the host
    asked for each collective, in its order)."""

    updates: list[Interval]
    marks: list[Mark]
    device: list[DeviceEvent] = field(default_factory=list)
    operators: Intervals = field(default_factory=list)
    in_flight: Intervals = field(default_factory=list)
    issues: list[tuple[int, str]] = field(default_factory=list)

    def phase_at(self, moment: int) -> str:
        """The host's phase at a moment; "" between phases."""
        index = bisect_right(self._begins, moment) - 1
        return self.marks[index].phase if index >= 0 and moment < self.marks[index].end else ""

    def __post_init__(self) -> None:
        self._begins = [mark.begin for mark in self.marks]


class Tracer:
    """Runs the profiler over a stage of a Meter and keeps the moments it is told of."""

    def __init__(self, device: torch.device, keep: Path | None = None) -> None:
        self._device, self._keep = device, keep
        self._cuda = device.type == "cuda"
        self._profile: Any = None
        self._synchronised: Interval = (0, 0)
        self.updates: list[Interval] = []
        self.marks: list[Mark] = []

    def start(self) -> None:
        """Begin to record."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes lines to stderr at each start and stop
        activity = ProfilerActivity.CUDA if self._cuda else ProfilerActivity.CPU
        self._profile = profile(activities=[activity], acc_events=True)  # there is one cycle; without it torch warns
        self._profile.start()

    def stop(self) -> None:
        """End, when the device has done all it was asked for."""
        if self._cuda:
            begin = time.time_ns()
            torch.cuda.synchronize(self._device)
            self._synchronised = (begin, time.time_ns())
        self._profile.stop()

    def read(self, skip: int) -> Trace:
        """What was recorded, without the first `skip` updates."""
        if len(self.updates) <= skip:
            raise TraceError("the run ended before the traced updates were over")
        with tempfile.TemporaryDirectory(prefix="vitscale-trace-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            if self._keep is not None:
                _keep(path, self._keep)
            events, base = _load(path)
        self._profile = None
        updates = self.updates[skip:]
        if self._cuda:
            _check_clock(events, base, self._synchronised)
            return Trace(updates, self.marks, device=_device_events(events, base, self._device.index or 0))
        return _host_trace(updates, self.marks, events, base)


def _keep(path: Path, target: Path) -> None:
    with path.open("rb") as source, gzip.open(target, "wb", compresslevel=3) as packed:
        shutil.copyfileobj(source, packed)


def _load(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The events that have a duration, and the moment from which their microseconds count."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        events = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
        return events, int(whole["baseTimeNanoseconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"the profiler's trace cannot be read ({type(error).__name__}: {error})") from error


def _interval(event: dict[str, Any], base: int) -> Interval:
    begin = base + round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def _device_events(events: Sequence[dict[str, Any]], base: int, device: int) -> list[DeviceEvent]:
    """What the GPU ran, in order of begin."""
    launches = {
        event["args"]["correlation"]: _interval(event, base)[0]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and event.get("args", {}).get("correlation")
    }
    found, lost = [], 0
    for event in events:
        category, args = event.get("cat"), event.get("args", {})
        if category not in ("kernel", "gpu_memcpy", "gpu_memset") or args.get("device", device) != device:
            continue
        begin, end = _interval(event, base)
        launched = launches.get(args.get("correlation"))
        lost += launched is None
        kind, collective = _kind(str(category), str(event["name"]))
        found.append(DeviceEvent(begin, end, begin if launched is None else launched, kind, collective))
    if not found:
        raise TraceError("the profiler recorded nothing of the GPU (CUPTI may be missing or in use by another tool)")
    if lost > 0.01 * len(found):
        raise TraceError(f"the profiler lost the launches of {lost} of {len(found)} kernels")
    return sorted(found)


def _kind(category: str, name: str) -> tuple[str, str]:
    if category == "gpu_memcpy":
        # Copies inside the device are work like a kernel's; those to and from the host wait for nobody.
        return ("kernel" if "DtoD" in name or "Device -> Device" in name else "copy"), ""
    match = _COMMUNICATION.search(name)
    if match:
        return "comm", match.group(1)
    return ("comm", "") if name.lower().startswith("nccl") else ("kernel", "")


def _check_clock(events: Sequence[dict[str, Any]], base: int, truth: Interval) -> None:
    """The last wait for the device must stand in the trace where our own clock saw it."""
    waits = [_interval(event, base) for event in events if event.get("name") == "cudaDeviceSynchronize"]
    if not waits:
        raise TraceError("the profiler recorded no CUDA calls of the host")
    off = min(max(abs(truth[0] - begin), abs(end - truth[1])) for begin, end in waits)
    if off > CLOCK_TOLERANCE_NS:
        raise TraceError(f"the profiler's clock is {off / 1e6:.1f} ms off the host's")


# --- on the CPU -----------------------------------------------------------------------------------------------------


def _host_trace(updates: list[Interval], marks: list[Mark], events: Sequence[dict[str, Any]], base: int) -> Trace:
    """On the CPU: operators of the computing threads, collectives in flight, and when they were asked for."""
    gloo = [event for event in events if str(event["name"]).startswith("gloo:")]
    theirs = {event["tid"] for event in gloo}
    operators = merged(
        _interval(event, base)
        for event in events
        if event.get("cat") == "cpu_op" and event["name"].startswith("aten::") and event["tid"] not in theirs
    )
    issues = sorted(
        (_interval(event, base)[0], event["name"]) for event in events if event["name"].startswith("c10d::")
    )
    trace = Trace(updates, marks, operators=operators, issues=issues)
    asked = [moment for moment, _ in issues]
    for event in gloo:
        begin, end = _interval(event, base)
        index = bisect_right(asked, begin) - 1
        # Flags that ranks exchange between updates run beside them, and nobody waits: no part of an update.
        if index >= 0 and trace.phase_at(asked[index]) in COMPUTING:
            trace.in_flight.append((begin, end))
    trace.in_flight = merged(trace.in_flight)
    trace.issues = [issue for issue in issues if trace.phase_at(issue[0]) in COMPUTING]
    return trace
