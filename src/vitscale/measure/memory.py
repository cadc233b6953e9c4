"""Peak memory of this process over a window: allocated and reserved on the GPU, resident on the host.

Host figures are Linux's own high-water mark, which can be set back; where it cannot, the peak since the process began
stands, as on other systems. Reading or resetting never waits for the device: the allocator keeps its books on the host.

A captured CUDA graph works in a private pool. Its replays allocate nothing, so that the allocator's own peak, set back
after the capture, knows nothing of the activations in there: what such pools hold beyond living tensors is added.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class Peak(NamedTuple):
    """Bytes; None for a device without an allocator of its own."""

    allocated: int | None
    reserved: int | None
    rss: int


class PeakMemory:
    """Peaks over the windows between `start` and `pause`, as one figure."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._peak = Peak(0 if self._cuda else None, 0 if self._cuda else None, 0)

    def start(self) -> None:
        """Count from here: a peak before this moment is forgotten."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        _reset_rss()

    def pause(self) -> Peak:
        """The largest peak so far; what follows, until the next start, does not count."""
        before, rss = self._peak, max(self._peak.rss, _peak_rss())
        if not self._cuda:
            self._peak = Peak(None, None, rss)
        else:
            reserved = torch.cuda.max_memory_reserved(self._device)
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            replayed = free_in_private_pools(_snapshot(), index)
            allocated = min(reserved, torch.cuda.max_memory_allocated(self._device) + replayed)
            self._peak = Peak(max(before.allocated or 0, allocated), max(before.reserved or 0, reserved), rss)
        return self._peak


def _snapshot() -> list[dict[str, Any]]:
    """The allocator's segments, on all devices."""
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return segments


def free_in_private_pools(segments: Iterable[Mapping[str, Any]], device: int) -> int:
    """Bytes of a device's private pools (of CUDA graphs) that no tensor holds now, and that a replay may write to."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if segment.get("device", device) == device and tuple(segment["segment_pool_id"]) != (0, 0)
    )


def _reset_rss() -> None:
    try:
        _CLEAR.write_text("5")  # proc(5): sets VmHWM back to the present VmRSS
    except OSError:
        return


def _peak_rss() -> int:
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(line.split()[1]) * 1024
