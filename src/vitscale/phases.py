"""The recorder protocol by which engines and the trainer mark the phases of an update; null by default.

Engines call `recorder.phase("forward")` as a context manager. What a phase costs is measure's business:
nothing here reads a clock or synchronises a device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

Phase = Literal["data_wait", "host_to_device", "forward", "backward", "optimizer", "evaluate", "checkpoint"]


class Recorder(Protocol):
    """Receives the phases of each update, in order, from one thread of one rank."""

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Context manager around one phase; phases of one update may repeat but do not nest."""
        ...


class NullRecorder:
    """Records nothing and costs one attribute look-up."""

    _nothing = nullcontext()

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Return a shared context manager that does nothing."""
        return self._nothing


NULL: Recorder = NullRecorder()
