"""The recorder protocol by which engines and the trainer mark the phases of an update; null by default.

Engines call `recorder.phase("forward")` as a context manager; the trainer says when an update has been issued and when
all is over. What a phase costs is measure's business: nothing here reads a clock or synchronises a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol

Phase = Literal["data_wait", "host_to_device", "forward", "backward", "optimizer", "step", "evaluate", "checkpoint"]
"""`step` is an update that is one launch, without parts: a replayed CUDA graph."""


class Part(NamedTuple):
    """A phase inside an update that is one launch, between two timing events of the device."""

    phase: Phase
    begin: Any
    end: Any


Gather = Callable[[Any], list[Any]]
"""All ranks' picklable values, by rank, on every rank. Collective."""


class Recorder(Protocol):
    """Receives the phases of each update, in order, from one thread of one rank."""

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Context manager around one phase; phases of one update may repeat but do not nest."""
        ...

    def inside(self, parts: Sequence[Part]) -> None:
        """The update now issued is one launch, with these parts; its events hold until the next launch."""
        ...

    def update(self, images: int) -> None:
        """An update of `images` images over all ranks has been issued; a GPU may still be at work on it."""
        ...

    def alive(self) -> None:
        """Something has got on that is no update, such as a batch of an evaluation."""
        ...

    def finish(self, gather: Gather) -> None:
        """Training is over; called once on every rank while the process group stands. Not called after a failure."""
        ...


class NullRecorder:
    """Records nothing and costs one attribute look-up."""

    _nothing = nullcontext()

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Return a shared context manager that does nothing."""
        return self._nothing

    def inside(self, parts: Sequence[Part]) -> None:
        """Nothing."""

    def update(self, images: int) -> None:
        """Nothing."""

    def alive(self) -> None:
        """Nothing."""

    def finish(self, gather: Gather) -> None:
        """Nothing."""


NULL: Recorder = NullRecorder()
