"""Where an update's time goes: the wall time of a window as a partition into phases, in seconds per update.

In: a Trace, or the measured seconds of each phase; how all ranks came to their collectives. Out: seconds by phase
whose sum is the window. To which phase an instant belongs stands in docs/method.md; here it is the order of layers.
What cannot be told is left out, with its reason, and never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from vitscale.measure.intervals import Interval, Intervals, difference, intersection, layered, length, merged
from vitscale.measure.trace import COMPUTING, Trace

HOST_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "step", "other")
BRIDGE_NS = 50_000
"""On the CPU a pause between two operators up to this long is the host's own work and no wait for a collective."""
CLOCKS_AGREE_NS = 100_000
Seconds = dict[str, float]


class Arrival(NamedTuple):
    """A rank came to a collective. end: when it was over there; None where that is not known."""

    kind: str
    begin: int
    end: int | None = None


# --- stragglers -------------------------------------------------------------------------------------------------------


def arrivals_of(trace: Trace) -> list[Arrival]:
    """The collectives of the window in an order that is the same on all ranks: by kind, within a kind as they came."""
    if trace.device:
        found = [
            Arrival(event.collective, event.begin, event.end)
            for event in trace.device
            if event.kind == "comm" and _inside(event.launched, trace.updates)
        ]
    else:
        found = [Arrival(name, moment) for moment, name in trace.issues if _inside(moment, trace.updates)]
    return sorted(found, key=lambda arrival: (arrival.kind, arrival.begin))


def latest_arrivals(by_rank: Sequence[Sequence[Arrival]]) -> list[int] | str:
    """When the last rank came to each collective; or why that cannot be told."""
    kinds = [[arrival.kind for arrival in arrivals] for arrivals in by_rank]
    if any(kinds[0] != other for other in kinds[1:]):
        return "the ranks' traces hold different collectives"
    columns = list(zip(*by_rank, strict=True))
    latest = [max(arrival.begin for arrival in column) for column in columns]
    impossible = sum(
        any(arrival.end is not None and arrival.end < last - CLOCKS_AGREE_NS for arrival in column)
        for column, last in zip(columns, latest, strict=True)
    )
    if impossible > 0.02 * len(columns):
        return "the ranks' clocks disagree: collectives end on one rank before they begin on another"
    return latest


def waits_of(arrivals: Sequence[Arrival], latest: Sequence[int]) -> Intervals:
    """From this rank's arrival to the last one's, for each collective."""
    return merged((own.begin, last) for own, last in zip(arrivals, latest, strict=True))


def _inside(moment: int, updates: Sequence[Interval]) -> bool:
    return any(begin <= moment < end for begin, end in updates)


# --- a GPU's time line ------------------------------------------------------------------------------------------------


def device_seconds(trace: Trace, waits: Intervals | None) -> tuple[Seconds, float]:
    """The window of a GPU's time line by phase, and how long it ran nothing at all; seconds per update.

    waits: None where arrivals are not known; then waiting for a straggler stays in exposed_comm.
    """
    window = device_window(trace)
    kernels: defaultdict[str, Intervals] = defaultdict(list)
    copies: defaultdict[str, Intervals] = defaultdict(list)
    communication: Intervals = []
    for event in trace.device:
        if event.kind == "comm":
            communication.append((event.begin, event.end))
        else:
            groups = kernels if event.kind == "kernel" else copies
            groups[_named(trace.phase_at(event.launched))].append((event.begin, event.end))
    order = (*COMPUTING, "host_to_device", "data_wait", "other")
    parts, rest = layered(window, [(phase, kernels[phase]) for phase in order])
    exposed = intersection(rest, merged(communication))
    rest = difference(rest, exposed)
    copied, idle = layered(rest, [(phase, copies[phase]) for phase in order])
    _add(parts, copied)
    _add(parts, _causes_of_idleness(trace, idle))
    _add(parts, _communication(exposed, waits))
    updates = len(trace.updates)
    return {name: value / 1e9 / updates for name, value in parts.items()}, length(idle) / 1e9 / updates


def device_window(trace: Trace) -> Intervals:
    """From when the device had done all that was launched before the window to the same at its end."""
    by_launch = sorted((event.launched, event.end) for event in trace.device)
    launched = [moment for moment, _ in by_launch]
    done = list(accumulate((end for _, end in by_launch), max))

    def settled(moment: int) -> int:
        index = bisect_left(launched, moment)
        return max(moment, done[index - 1]) if index else moment

    return merged((settled(begin), settled(end)) for begin, end in trace.updates)


def _causes_of_idleness(trace: Trace, idle: Intervals) -> dict[str, int]:
    """While the device has nothing to do it waits for the host: the time belongs to what the host is doing. From the
    launch on, the next kernel is on its way, and the time is its phase's."""
    begins = [event.begin for event in trace.device]
    parts: dict[str, int] = {}
    unlaunched: Intervals = []
    for begin, end in idle:
        index = bisect_left(begins, begin)
        launched = trace.device[index].launched if index < len(begins) else end
        launched = min(max(launched, begin), end)
        if launched < end:
            phase = _named(trace.phase_at(trace.device[index].launched))
            parts[phase] = parts.get(phase, 0) + end - launched
        if begin < launched:
            unlaunched.append((begin, launched))
    by_host, rest = layered(unlaunched, _marks_by_phase(trace))
    _add(parts, by_host)
    _add(parts, {"other": length(rest)})
    return parts


# --- the CPU's time line ----------------------------------------------------------------------------------------------


def exposed_by_phase(trace: Trace, waits: Intervals | None) -> dict[str, Seconds]:
    """phase -> exposed_comm and straggler_wait as shares of its time: a collective is in flight, and no thread of this
    process computes."""
    window = merged(trace.updates)
    waiting = difference(intersection(window, trace.in_flight), merged(trace.operators, bridge=BRIDGE_NS))
    shares = {}
    for phase, intervals in _marks_by_phase(trace):
        inside = intersection(window, merged(intervals))
        if phase in COMPUTING and inside:
            parts = _communication(intersection(waiting, inside), waits)
            shares[phase] = {name: value / length(inside) for name, value in parts.items()}
    return shares


def without_communication(phases: Mapping[str, float], exposed: Mapping[str, Seconds]) -> Seconds:
    """Measured phases with their shares of communication taken out of them and shown apart; the sum stays."""
    seconds = dict(phases)
    for phase, shares in exposed.items():
        for name, share in shares.items():
            seconds[name] = seconds.get(name, 0.0) + share * phases[phase]
            seconds[phase] -= share * phases[phase]
    return seconds


# --- both -----------------------------------------------------------------------------------------------------------


def in_collectives(trace: Trace) -> float:
    """Seconds per update in which a collective was running or in flight, hidden or not."""
    if trace.device:
        window = device_window(trace)
        running = merged((event.begin, event.end) for event in trace.device if event.kind == "comm")
    else:
        window, running = merged(trace.updates), trace.in_flight
    return length(intersection(window, running)) / 1e9 / len(trace.updates)


def _communication(exposed: Intervals, waits: Intervals | None) -> dict[str, int]:
    if waits is None:
        return {"exposed_comm": length(exposed)}
    straggling = intersection(exposed, waits)
    return {"exposed_comm": length(exposed) - length(straggling), "straggler_wait": length(straggling)}


def _marks_by_phase(trace: Trace) -> Iterable[tuple[str, Intervals]]:
    found: dict[str, Intervals] = {}
    for mark in trace.marks:
        found.setdefault(_named(mark.phase), []).append((mark.begin, mark.end))
    return found.items()


def _named(phase: str) -> str:
    return phase if phase in HOST_PHASES else "other"


def _add(parts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        parts[name] = parts.get(name, 0) + value
