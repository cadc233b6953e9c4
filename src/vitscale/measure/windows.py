"""The updates of one stage of a measurement: raw times, images, and what their phases add up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from vitscale.engine.edge import Edge
from vitscale.measure.phase_clock import Span
from vitscale.phases import Part

LAG = 64  # device events of updates this old are read while training goes on, if the device has passed them
SPANNED = 20  # counted updates whose phases are timed on the device


class Window:
    """Nothing here waits for the device but `settle` and `phases`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.images: list[int] = []
        self.data_wait: list[float] = []
        self._host: dict[str, float] = {}
        self._spans: list[tuple[Edge, Edge, Sequence[Span]]] = []
        self._pending: deque[tuple[Edge, Edge]] = deque()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def spanned(self) -> int:
        """Updates whose phases were timed on the device."""
        return len(self._spans)

    def add(
        self, begin: Edge, end: Edge, images: int, host: Mapping[str, float], spans: Sequence[Span] | None = None
    ) -> None:
        """One update: its edges, its phases by the host's clock, and by the device's if they were timed."""
        self.images.append(images)
        self.data_wait.append(host["data_wait"])
        for name, seconds in host.items():
            self._host[name] = self._host.get(name, 0.0) + seconds
        if spans is not None:
            self._spans.append((begin, end, spans))
        self._pending.append((begin, end))
        if len(self._pending) > LAG and self._pending[0][1].passed():
            self._read()

    def settle(self) -> list[float]:
        """All times; waits for the device."""
        while self._pending:
            self._read()
        return self.seconds

    def _read(self) -> None:
        begin, end = self._pending.popleft()
        self.seconds.append(end.since(begin))

    def phases(self, *, device: bool) -> dict[str, float]:
        """Mean seconds of each phase per update, and `other`, what is left: of the device's time line over the first
        updates, or of the host's over all."""
        if device:
            return self._device_phases()
        return _with_other(self._host, sum(self.settle()), len(self))

    def _device_phases(self) -> dict[str, float]:
        sums = dict.fromkeys(self._host, 0.0)
        whole = 0.0
        for begin, end, spans in self._spans:
            whole += end.since(begin)
            for span in spans:
                sums[span.phase] += span.end.since(span.begin)
        return _with_other(sums, whole, len(self._spans))


class InsideOne:
    """What an update that is one launch consists of, by the events inside it."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, parts: Sequence[Part]) -> None:
        """One update. Waits for its end: the next launch sets the same events anew."""
        parts[-1].end.synchronize()
        for part in parts:
            self._sums[part.phase] = self._sums.get(part.phase, 0.0) + part.begin.elapsed_time(part.end)

    def shares(self) -> dict[str, float] | None:
        """Each phase's share of the launch; None if nothing was seen."""
        whole = sum(self._sums.values())
        return {phase: value / whole for phase, value in self._sums.items()} if whole else None


def _with_other(sums: Mapping[str, float], whole: float, updates: int) -> dict[str, float]:
    """Seconds per update. The clocks of device events have steps of half a microsecond: other is never negative."""
    other = max(0.0, whole - sum(sums.values()))
    return {name: seconds / updates for name, seconds in {**sums, "other": other}.items()}
