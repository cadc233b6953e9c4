"""RUN/metrics.jsonl: every row and event as it comes, one JSON object per line.

A run that was resumed from a checkpoint repeats the updates after it: each session begins with a row of kind "start"
that says from which update, and where rows overlap the later session counts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from vitscale.results.store import JsonlWriter


class MetricsFileObserver:
    """Appends to a JSONL file; `time` is the wall clock in seconds."""

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)

    def start(self, info: dict[str, Any]) -> None:
        """One row for this session."""
        self._append({"kind": "start", **info})

    def metrics(self, row: dict[str, Any]) -> None:
        """The row as it is."""
        self._append(row)

    def event(self, row: dict[str, Any]) -> None:
        """The row as it is."""
        self._append(row)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _append(self, row: dict[str, Any]) -> None:
        self._writer.append({**row, "time": time.time()})
