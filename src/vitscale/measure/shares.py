"""From each rank's phases and trace to one Attribution: what may be told, and what is n/a and why.

In: a RankShares on every rank. Out, the same on every rank: Findings with the fields of results.record.Attribution.
The trace is believed only where it did not change what it looked at; otherwise the phases stand as they were measured
without it, with the communication still inside them, and say so.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitscale.measure.attribution import (
    Arrival,
    Seconds,
    arrivals_of,
    device_seconds,
    exposed_by_phase,
    in_collectives,
    latest_arrivals,
    waits_of,
    without_communication,
)
from vitscale.measure.trace import Trace, TraceError, Tracer
from vitscale.phases import Gather
from vitscale.results.record import PHASES

MAX_CHANGE_CUDA = 0.03
MAX_CHANGE_CPU = 0.25
"""How far traced updates may lie from the others: their medians, and on the CPU their lower quartiles, since other
processes only ever add to them. There the trace gives nothing but the communication, and updates differ by that much
from one minute to the next."""
MAX_OTHER = 0.05
MIN_TRACED = 10
INSIDE = "it stays inside forward, backward and optimizer"
ONE_LAUNCH = "the update is one launch"
STEP_PHASES = ("data_wait", "host_to_device", "step", "other")  # of an update that is one launch
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in every container of a host, whose clock they share


@dataclass
class RankShares:
    """What one rank brings. phases: seconds per counted update, not traced; untraced, traced: times of updates; inside:
    of what an update that is one launch consists, as shares of its step."""

    phases: Seconds
    untraced: Sequence[float]
    traced: Sequence[float]
    tracer: Tracer | None
    inside: Seconds | None = None

    @property
    def one_launch(self) -> bool:
        """Whether the updates were replays of a graph. A loop that marks no parts (a bench's peers) is one phase as
        well, but its kernels have launches of their own, which a trace can tell of."""
        return bool(self.phases.get("step")) and (self.inside is not None or self.tracer is None)

    @property
    def parts(self) -> Seconds:
        """The phases, with `step` as its parts where they are known."""
        if not self.one_launch or self.inside is None:
            return self.phases
        step = self.phases["step"]
        rest = {name: 0.0 if name == "step" else value for name, value in self.phases.items()}
        return rest | {phase: rest.get(phase, 0.0) + share * step for phase, share in self.inside.items()}


class Findings(NamedTuple):
    """attribution: the fields of a record's Attribution, traced_step_time_s apart; missing: why there is none."""

    attribution: dict[str, Any] | None
    missing: str | None = None
    communication_s: float | None = None


class _Told(NamedTuple):
    """One rank's part. traced: its partition with the help of the trace; None where `problem` says why not."""

    traced: Seconds | None = None
    idle_s: float | None = None
    communication_s: float | None = None
    problem: str | None = None
    one_launch: bool = False


def share_out(own: RankShares, gather: Gather, *, cuda: bool, skip: int) -> Findings:
    """Collective: every rank calls it once. skip: traced updates that are left out at the beginning."""
    trace, arrivals, problem = _read(own, skip)
    brought: list[tuple[str, list[Arrival] | None]] = gather((_host(), arrivals))
    latest = _latest(brought)
    told = gather((own.parts, _tell(own, trace, arrivals, latest, problem, cuda=cuda)))
    return _findings([phases for phases, _ in told], [part for _, part in told], latest, cuda=cuda)


def _read(own: RankShares, skip: int) -> tuple[Trace | None, list[Arrival] | None, str | None]:
    if own.tracer is None or not own.traced:
        return None, None, "no updates were traced"
    if len(own.traced) < MIN_TRACED:
        return None, None, f"only {len(own.traced)} updates were traced, and fewer than {MIN_TRACED} say little"
    try:
        trace = own.tracer.read(skip)
        return trace, arrivals_of(trace), None
    except TraceError as error:
        return None, None, str(error)
    except Exception as error:  # the other ranks wait for this one, and a trace is not worth a measurement
        return None, None, f"the trace could not be read ({type(error).__name__}: {error})"


def _host() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()


def _latest(brought: Sequence[tuple[str, list[Arrival] | None]]) -> list[int] | str:
    if len({host for host, _ in brought}) > 1:
        return "the ranks run on several hosts, and their clocks are not one"
    arrivals = [theirs for _, theirs in brought if theirs is not None]
    if len(arrivals) < len(brought):
        return "not every rank has a trace"
    return latest_arrivals(arrivals)


def _tell(
    own: RankShares,
    trace: Trace | None,
    arrivals: list[Arrival] | None,
    latest: list[int] | str,
    problem: str | None,
    *,
    cuda: bool,
) -> _Told:
    if own.one_launch:
        return _Told(problem=ONE_LAUNCH, one_launch=True)
    if trace is None or arrivals is None:
        return _Told(problem=problem)
    problem = _changed(own, cuda=cuda)
    waits = None if isinstance(latest, str) else waits_of(arrivals, latest)
    try:
        if cuda:
            traced, idle_s = device_seconds(trace, waits)
        else:
            traced, idle_s = without_communication(own.phases, exposed_by_phase(trace, waits)), None
        return _Told(traced, idle_s, in_collectives(trace) * _stretch(own, cuda=cuda), problem)
    except Exception as error:  # as above
        return _Told(problem=f"the trace could not be shared out ({type(error).__name__}: {error})")


def _stretch(own: RankShares, *, cuda: bool) -> float:
    """From traced to counted updates; on the CPU all figures of the trace are shares, seconds the counted updates'."""
    return 1.0 if cuda or not own.traced else statistics.fmean(own.untraced) / statistics.fmean(own.traced)


def _changed(own: RankShares, *, cuda: bool) -> str | None:
    """Why a trace is not believed that changed what it looked at; None if it did not."""
    if not own.untraced or not own.traced:
        return "there are no updates without a trace to compare with"
    quantile, name = (50, "median") if cuda else (25, "lower quartile")
    limit = MAX_CHANGE_CUDA if cuda else MAX_CHANGE_CPU
    before, traced = float(np.percentile(own.untraced, quantile)), float(np.percentile(own.traced, quantile))
    if abs(traced / before - 1) < limit:
        return None
    return (
        f"tracing changed the updates' {name} from {before * 1e3:.3g} to {traced * 1e3:.3g} ms, which is "
        f"{abs(traced / before - 1):.0%}, and the limit is {limit:.0%}"
    )


def _findings(phases: list[Seconds], told: list[_Told], latest: list[int] | str, *, cuda: bool) -> Findings:
    # Whether tracing changed the updates is rank 0's to say: on the others a pause may fall differently.
    problem = next((part.problem for part in told if part.traced is None), told[0].problem)
    unknown: dict[str, str] = {}
    warnings: list[str] = []
    names: Sequence[str] = PHASES
    stepped = any(part.get("step") for part in phases)
    if stepped and problem:
        names = STEP_PHASES  # what engines mark around the launch is none of them
        by_rank = [{**part, "other": sum(part.values()) - sum(part[n] for n in STEP_PHASES[:3])} for part in phases]
        unknown = dict.fromkeys(("exposed_comm", "straggler_wait"), f"{ONE_LAUNCH}; it stays inside step")
    elif told[0].one_launch and len(told) > 1:
        by_rank = phases
        unknown = dict.fromkeys(("exposed_comm", "straggler_wait"), f"{ONE_LAUNCH}; {INSIDE}")
    elif told[0].one_launch:
        by_rank = [{**phases[0], "exposed_comm": 0.0, "straggler_wait": 0.0}]
    elif problem is None:
        by_rank = [part.traced for part in told if part.traced is not None]
        names = (
            ("data_wait", "host_to_device", "step", "exposed_comm", "straggler_wait", "other") if stepped else PHASES
        )
        if isinstance(latest, str):
            unknown["straggler_wait"] = f"{latest}; it stays inside exposed_comm"
    elif len(told) == 1:  # nobody to wait for
        by_rank = [{**phases[0], "exposed_comm": 0.0, "straggler_wait": 0.0}]
        if cuda:
            warnings.append(f"by device events at the edges of phases, without a trace: {problem}")
    else:
        by_rank = phases
        unknown = dict.fromkeys(("exposed_comm", "straggler_wait"), f"{problem}; {INSIDE}")
    known = [name for name in names if name not in unknown]
    by_rank = [{name: part.get(name, 0.0) for name in known} for part in by_rank]
    seconds = {name: statistics.fmean(part[name] for part in by_rank) for name in known}
    warnings += _doubts(seconds)
    attribution = {
        "method": "phases" if problem else "trace",
        "seconds": seconds,
        "by_rank": by_rank,
        "unknown": unknown,
        "warnings": warnings,
        "idle_s": _mean([part.idle_s for part in told]) if problem is None else None,
    }
    return Findings(attribution, None, None if problem else _mean([part.communication_s for part in told]))


def _doubts(seconds: Seconds) -> list[str]:
    whole = sum(seconds.values())
    if seconds["other"] <= MAX_OTHER * whole:
        return []
    return [f"{seconds['other'] / whole:.0%} of an update is in none of the phases (other)"]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None
