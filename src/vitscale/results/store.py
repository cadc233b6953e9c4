"""Append-only JSONL: one row per line, written whole, readable while it grows. Torch-free.

In: flat dicts. Out: a file that a crash can leave with at most one broken last line, which reading skips and the next
writer closes. What rows mean is the writer's business.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitscale.errors import DataError


class JsonlWriter:
    """Appends rows to a file; each is with the kernel when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for appending: several writers, or a resumed run, never overwrite each other's rows.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # what a crash left half-written stays a line of its own

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        data = (json.dumps(_plain(row), allow_nan=False) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            error.filename = str(self._path)  # a full disk names no file
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows; broken lines after a crash are skipped, a line that is no object is a DataError."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict):
                raise DataError(f"{path} line {number} is not a JSON object; it was not written by vitscale")
            yield row


def _plain(value: Any) -> Any:
    """Make non-finite numbers strings ('nan', 'inf'): JSON has none, and None would hide them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
