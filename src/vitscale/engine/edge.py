"""Edge: a moment in training, taken without waiting for the device. What lies between two is others' business."""

from __future__ import annotations

import time

import torch


class Edge:
    """A moment in training: of the device's own time line on CUDA, of the host's elsewhere."""

    def __init__(self, cuda: bool) -> None:
        self._time = time.monotonic()
        self._event = torch.cuda.Event(enable_timing=True) if cuda else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record()

    def passed(self) -> bool:
        """Whether the device has come here; does not wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def since(self, before: Edge) -> float:
        """Seconds from `before` to here; waits until the device has come here."""
        if self._event is None or before._event is None:
            return self._time - before._time
        self._event.synchronize()
        return float(before._event.elapsed_time(self._event)) / 1e3
