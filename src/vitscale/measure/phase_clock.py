"""The clock of a rank's phases: the context managers that engines and the trainer enter, and what they add up to.

Host seconds of each phase always; on CUDA, for the first counted updates, the same on the device's own time line (two
events a phase); while tracing, the moments on the profiler's clock. Nothing waits for the device here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from vitscale.engine.edge import Edge
from vitscale.measure.trace import Mark

ASIDE = ("evaluate", "checkpoint")
TIMED = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "step")


class Span(NamedTuple):
    """A phase on the device's time line."""

    phase: str
    begin: Edge
    end: Edge


class PhaseClock:
    """aside: called with True when an evaluation or a checkpoint begins, with False when it ends."""

    def __init__(self, aside: Callable[[bool], None]) -> None:
        self.seconds = dict.fromkeys(TIMED, 0.0)  # of the host, in the present update
        self.spans: list[Span] | None = None  # of the device, in the present update; None: not wanted
        self.marks: list[Mark] | None = None  # None: not wanted
        self._contexts: dict[str, AbstractContextManager[object]] = {name: _Timed(self, name) for name in TIMED}
        self._contexts |= {name: _Aside(aside) for name in ASIDE}

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context manager around one phase."""
        return self._contexts[name]

    def restart(self) -> None:
        """Begin an update."""
        self.seconds = dict.fromkeys(TIMED, 0.0)
        if self.spans is not None:
            self.spans = []


class _Timed:
    """Used over and over: phases do not nest."""

    __slots__ = ("_began", "_clock", "_edge", "_marked", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name
        self._began, self._marked = 0.0, 0
        self._edge: Edge | None = None

    def __enter__(self) -> None:
        if self._clock.spans is not None:
            self._edge = Edge(True)
        if self._clock.marks is not None:
            self._marked = time.time_ns()
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._clock.seconds[self._name] += time.monotonic() - self._began
        if self._clock.marks is not None:
            self._clock.marks.append(Mark(self._name, self._marked, time.time_ns()))
        if self._clock.spans is not None and self._edge is not None:
            self._clock.spans.append(Span(self._name, self._edge, Edge(True)))
        self._edge = None


class _Aside:
    """Not part of any update."""

    __slots__ = ("_aside",)

    def __init__(self, aside: Callable[[bool], None]) -> None:
        self._aside = aside

    def __enter__(self) -> None:
        self._aside(True)

    def __exit__(self, *_: object) -> None:
        self._aside(False)
