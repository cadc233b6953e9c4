"""A heartbeat from each rank to the parent, through a small shared file; and the parent's judgement that a rank hangs.

The rank's side (Heartbeat) writes four integers into mapped memory: no system call, well under a microsecond, at every
update and phase. The parent's side (HangWatch) looks at them now and then, with its own clock. Hung is a rank that
trains and has made no update for max(30 s, 10 x the median), counted from the second update; before that (compilation
takes minutes), and while a rank is busy with something else than updates (a checkpoint, the end of a trace), only the
case's own time-out ends it. Batches of an evaluation count as updates do. Both sides are on one host. Torch-free.
"""

from __future__ import annotations

import mmap
import statistics
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from vitscale.phases import Part, Phase, Recorder

HANG_S = 30.0
HANG_FACTOR = 10.0
FIRST_STEPS = 2  # of training, or of one evaluation, before silence means anything
ASIDE = "aside"  # the meter at work: it opens and closes traces
PHASES = ("start", ASIDE, *get_args(Phase))
UNTIMED = ("start", "checkpoint", ASIDE)

_LAYOUT = struct.Struct("<qqqq")  # updates, steps (updates and evaluation batches), marks, phase
_KEPT = 200  # intervals in the median


class Heartbeat:
    """One rank's beat. Every method costs well under a microsecond."""

    def __init__(self, folder: Path, rank: int) -> None:
        with open(beat_file(folder, rank), "w+b") as file:
            file.truncate(_LAYOUT.size)
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._updates = self._steps = self._marks = 0
        self._phase = 0
        self._write()

    def beat(self) -> None:
        """One more update."""
        self._updates += 1
        self._steps += 1
        self._write()

    def alive(self) -> None:
        """Progress that is no update: a batch of an evaluation."""
        self._steps += 1
        self._write()

    def mark(self, phase: str) -> None:
        """A phase begins; of the ranks that have made equally many updates, the one with fewer marks is behind."""
        self._marks += 1
        self._phase = _NUMBERS[phase]
        self._write()

    def _write(self) -> None:
        _LAYOUT.pack_into(self._memory, 0, self._updates, self._steps, self._marks, self._phase)


class Watched:
    """A Recorder that beats before it hands on."""

    def __init__(self, recorder: Recorder, heartbeat: Heartbeat) -> None:
        self._recorder, self._heartbeat = recorder, heartbeat

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Mark the phase."""
        self._heartbeat.mark(name)
        return self._recorder.phase(name)

    def inside(self, parts: Sequence[Part]) -> None:
        """Hand on."""
        self._recorder.inside(parts)

    def update(self, images: int) -> None:
        """Beat; the recorder may then be busy for long, if a trace ends here."""
        self._heartbeat.beat()
        self._heartbeat.mark(ASIDE)
        self._recorder.update(images)
        self._heartbeat.mark("data_wait")

    def alive(self) -> None:
        """Beat without an update."""
        self._heartbeat.alive()
        self._recorder.alive()

    def finish(self, gather: Callable[[Any], list[Any]]) -> None:
        """From here on nobody expects updates."""
        self._heartbeat.mark(ASIDE)
        self._recorder.finish(gather)


_NUMBERS = {name: number for number, name in enumerate(PHASES)}


@dataclass(frozen=True, slots=True)
class Beat:
    """What a rank last wrote."""

    updates: int
    steps: int
    marks: int
    phase: str


@dataclass(frozen=True, slots=True)
class Hang:
    """A rank that hangs, where, and for how long nothing came from it."""

    rank: int
    updates: int
    phase: str
    silent_s: float
    limit_s: float
    alone: bool

    def sentence(self) -> str:
        """For people."""
        where = (
            "in an evaluation" if self.phase == "evaluate" else f"in phase {self.phase} of update {self.updates + 1}"
        )
        place = "the furthest behind" if self.alone else "no further behind than others, so it may wait for them"
        return (
            f"rank {self.rank} hung {where}: no progress for {self.silent_s:.0f} s (limit {self.limit_s:.0f} s); it is "
            f"{place}"
        )


@dataclass
class _Seen:
    """What the parent knows of one rank."""

    beat: Beat | None = None
    changed: float = 0.0
    steps_here: int = 0  # since the phase last turned to or from an evaluation
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


class HangWatch:
    """Looks at the ranks' beats; `poll` is cheap enough for every second."""

    def __init__(
        self, folder: Path, nproc: int, *, hang_s: float = HANG_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._hang_s, self._clock = folder, hang_s, clock
        self._ranks = [_Seen() for _ in range(nproc)]

    def poll(self) -> Hang | None:
        """The hang, if there is one now."""
        now = self._clock()
        for rank, seen in enumerate(self._ranks):
            self._look(seen, read_beat(self._folder, rank), now)
        silent = [seen for seen in self._ranks if self._is_silent(seen, now)]
        if not silent:
            return None
        # All wait for the one that is behind, and it need not be one that has been found silent.
        places = [(seen.beat.steps, seen.beat.marks) if seen.beat else (-1, 0) for seen in self._ranks]
        rank = places.index(min(places))
        behind = self._ranks[rank]
        beat = behind.beat or Beat(0, 0, 0, "start")
        limit = max(self._limit(seen) for seen in silent)
        alone = len(places) == 1 or places.count(places[rank]) == 1
        return Hang(rank, beat.updates, beat.phase, now - max(behind.changed, silent[0].changed), limit, alone)

    def _look(self, seen: _Seen, beat: Beat | None, now: float) -> None:
        before = seen.beat
        if beat is None or beat == before:
            return
        seen.beat = beat
        if before is None or before.phase in UNTIMED or _evaluates(before) != _evaluates(beat):
            seen.changed = now
            seen.steps_here = 0 if _evaluates(beat) else beat.updates
            return
        done = beat.steps - before.steps
        if done:
            if before.steps:  # the first update compiles, and says nothing about the others
                seen.intervals.append((now - seen.changed) / done)
            seen.changed = now
            seen.steps_here += done

    def _is_silent(self, seen: _Seen, now: float) -> bool:
        if seen.beat is None or seen.beat.phase in UNTIMED or seen.steps_here < FIRST_STEPS:
            return False
        return now - seen.changed > self._limit(seen)

    def _limit(self, seen: _Seen) -> float:
        return max(self._hang_s, HANG_FACTOR * statistics.median(seen.intervals)) if seen.intervals else self._hang_s


def _evaluates(beat: Beat) -> bool:
    return beat.phase == "evaluate"


def clear_beats(folder: Path) -> None:
    """Forget an earlier group, before the ranks of a new one start."""
    for path in folder.glob("rank*.beat"):
        path.unlink()


def beat_file(folder: Path, rank: int) -> Path:
    """Where rank `rank` beats."""
    return folder / f"rank{rank}.beat"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """What the rank last wrote; None before it has begun."""
    try:
        data = beat_file(folder, rank).read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != _LAYOUT.size:
        return None
    updates, steps, marks, phase = _LAYOUT.unpack(data)
    return Beat(updates, steps, marks, PHASES[phase])
