"""The meter: the recorder of a measured run. It keeps raw times per update and never makes the host wait for them.

In: the phases and updates of one rank, as engines and trainer mark them. Out, after `finish`, on rank 0: the fields of
results.record.Measurement. A case is a sequence of stages: warm-up (kept, not counted), counted, traced. The device is
synchronised where a stage ends and nowhere else; times of updates are device events on CUDA, the host's monotonic
clock elsewhere. Evaluations and checkpoints are cut out of them.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from vitscale.engine.edge import Edge
from vitscale.measure.communication import all_reduce_bandwidth
from vitscale.measure.device_state import DeviceWatch
from vitscale.measure.memory import Peak, PeakMemory
from vitscale.measure.phase_clock import PhaseClock
from vitscale.measure.shares import MIN_TRACED, Findings, RankShares, share_out
from vitscale.measure.trace import Tracer
from vitscale.measure.windows import SPANNED, InsideOne, Window
from vitscale.phases import Gather, Part, Phase

StageName = Literal["warmup", "counted", "traced", "over"]
LEAD_IN = 2  # traced updates that are thrown away: the profiler's first ones are slow


class Stage(NamedTuple):
    """A stretch of updates; None: until the end."""

    name: StageName
    updates: int | None


class Meter:
    """A Recorder. Without `updates` all that follow the warm-up and the traced ones, which then come first, count."""

    def __init__(
        self,
        device: torch.device,
        rank: int,
        world_size: int,
        *,
        warmup: int,
        updates: int | None,
        trace: int = 0,
        gradient_bytes: int | None = None,
        keep_trace: Path | None = None,
    ) -> None:
        """trace: updates under the profiler, 0 or at least 10. gradient_bytes: size of the all-reduce that is measured
        when training is over. keep_trace: where this rank's trace is kept (*.json.gz)."""
        assert trace == 0 or trace >= MIN_TRACED, f"a trace of {trace} updates says little; take at least {MIN_TRACED}"
        self._cuda = device.type == "cuda"
        self._device, self._rank, self._world_size = device, rank, world_size
        self._gradient_bytes = gradient_bytes
        # One process on the CPU has no collective to look for, and its phases are known without a trace.
        traced = trace + LEAD_IN if trace and (self._cuda or world_size > 1) else 0
        self._stages = deque(_stages(warmup, updates, traced))
        self.total_updates = None if updates is None else warmup + updates + traced
        self._stage = Stage("over", None)
        self._windows: dict[StageName, Window] = {"warmup": Window(), "counted": Window(), "traced": Window()}
        self._edge: Edge | None = None
        self._clock = PhaseClock(self._aside)
        self._tracer = Tracer(device, keep_trace) if traced else None
        self._began_ns = 0
        self._inside = InsideOne()
        self._memory, self._watch = PeakMemory(device), DeviceWatch(device)
        self._peak: Peak | None = None
        self._graphs: int | None = None
        self._graphs_aside: int | None = None
        self._recompiles: int | None = None
        self._bandwidth: float | None = None
        self._parts: list[dict[str, Any]] = []
        self._findings = Findings(None, "the run ended before any update was counted")

    # --- what the recorder is told ------------------------------------------------------------------------------------

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Context manager around one phase."""
        if self._edge is None:
            self._begin()
        return self._clock.phase(name)

    def inside(self, parts: Sequence[Part]) -> None:
        """Read the parts of an update that is one launch. That waits for the device, so only of updates that are
        traced and not counted."""
        if self._stage.name == "traced" and parts:
            self._inside.add(parts)

    def update(self, images: int) -> None:
        """Close an update and begin the next."""
        if self._edge is None:
            self._begin()
        assert self._edge is not None
        edge = Edge(self._cuda)
        if self._stage.name != "over":
            self._windows[self._stage.name].add(self._edge, edge, images, self._clock.seconds, self._clock.spans)
            if self._clock.marks is not None and self._tracer is not None:
                now = time.time_ns()
                self._tracer.updates.append((self._began_ns, now))
                self._began_ns = now
        self._edge = edge
        self._clock.restart()
        done = len(self._windows[self._stage.name]) if self._stage.name != "over" else 0
        if self._clock.spans is not None and done == SPANNED:
            self._clock.spans = None
        if self._stage.updates is not None and done >= self._stage.updates:
            self._next_stage()

    def alive(self) -> None:
        """Of no interest here."""

    def trained_s(self) -> float:
        """Seconds of all updates so far, warm-up included; opening and closing a trace is in none of them. Waits for
        the device."""
        return sum(sum(window.settle()) for window in self._windows.values())

    def finish(self, gather: Gather) -> None:
        """Read what the device still owes, share out the traced time, gather all ranks' parts."""
        self._leave_stage()
        self._stage = Stage("over", None)
        if self._gradient_bytes is not None:
            self._bandwidth = all_reduce_bandwidth(self._gradient_bytes, self._device, gather)
        counted = self._windows["counted"]
        if len(counted):
            own = RankShares(
                phases=counted.phases(device=self._cuda),
                untraced=counted.settle(),
                traced=self._windows["traced"].settle()[LEAD_IN:],
                tracer=self._tracer,
                inside=self._inside.shares(),
            )
            self._findings = share_out(own, gather, cuda=self._cuda, skip=LEAD_IN)
            if self._findings.attribution is not None:
                traced = self._findings.attribution["method"] == "trace"
                shared = len(counted) if not self._cuda else len(own.traced) if traced else counted.spanned
                self._findings.attribution.update({"updates": shared, "traced_step_time_s": own.traced})
        self._parts = gather({"peak": self._peak or self._memory.pause(), "state": self._watch.state()})

    def result(self) -> dict[str, Any]:
        """The fields of a Measurement, on rank 0 after `finish`."""
        counted = self._windows["counted"]
        peaks = [Peak(*part["peak"]) for part in self._parts]
        states = [part["state"] for part in self._parts]
        return {
            "warmup_step_time_s": self._windows["warmup"].settle(),
            "step_time_s": counted.settle(),
            "images": counted.images,
            "data_wait_s": counted.data_wait,
            "peak_allocated_bytes": [peak.allocated for peak in peaks if peak.allocated is not None],
            "peak_reserved_bytes": [peak.reserved for peak in peaks if peak.reserved is not None],
            "peak_rss_bytes": [peak.rss for peak in peaks],
            "device_state": [state or {} for state in states] if any(states) else [],
            "communication": {
                "seconds_per_update": self._findings.communication_s,
                "bus_bandwidth_bytes_per_s": self._bandwidth,
            },
            "attribution": self._findings.attribution,
            "attribution_missing": self._findings.missing,
            "recompiles": self._recompiles,
        }

    # --- stages -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """At the first phase: before it, the device may not have been touched yet."""
        self._next_stage()
        self._restart()

    def _restart(self) -> None:
        """Begin an update here."""
        self._edge, self._began_ns = Edge(self._cuda), time.time_ns()
        self._clock.restart()

    def _aside(self, begins: bool) -> None:
        """An evaluation or a checkpoint begins or ends: no part of any update."""
        if self._stage.name == "counted":
            if begins:
                self._memory.pause()
                self._watch.stop()
                self._graphs_aside = compiled_graphs()
            else:
                made = (compiled_graphs() or 0) - (self._graphs_aside or 0)
                self._graphs = (self._graphs or 0) + made  # a first evaluation compiles, and costs no update its time
                self._memory.start()
                self._watch.start()
        self._restart()

    def _next_stage(self) -> None:
        self._leave_stage()
        self._stage = self._stages.popleft() if self._stages else Stage("over", None)
        if self._stage.name == "counted":
            self._graphs = compiled_graphs()
            self._clock.spans = [] if self._cuda else None
            self._memory.start()
            self._watch.start()
        elif self._stage.name == "traced" and self._tracer is not None:
            self._tracer.start()
            self._clock.marks = self._tracer.marks
        if self._edge is not None:
            self._restart()

    def _leave_stage(self) -> None:
        if self._cuda and self._edge is not None:
            torch.cuda.synchronize(self._device)
        if self._stage.name == "counted":
            self._watch.stop()
            self._peak = self._memory.pause()
            self._clock.spans = None
            self._recompiles = recompiles(self._graphs)
        elif self._stage.name == "traced" and self._tracer is not None:
            self._tracer.stop()
            self._clock.marks = None


def compiled_graphs() -> int | None:
    """Graphs that torch.compile has made in this process so far; None if it has not been used.

    torch has no public count; this is the one that its own log of recompilations is fed from.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
    return graphs or None


def recompiles(before: int | None) -> int | None:
    """Graphs made since; in a compiled run each of them cost a counted update its time."""
    now = compiled_graphs()
    return None if now is None else now - (before or 0)


def _stages(warmup: int, updates: int | None, traced: int) -> list[Stage]:
    """With a known number of updates the traced ones come last; else right after the warm-up."""
    first, counted, last = Stage("warmup", warmup), Stage("counted", updates), Stage("traced", traced)
    stages = [first, last, counted] if updates is None else [first, counted, last]
    return [stage for stage in stages if stage.updates != 0]
