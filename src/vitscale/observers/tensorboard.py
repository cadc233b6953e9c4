"""RUN/tensorboard: the rows' scalars as TensorBoard events, by update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitscale.observers.scalars import scalars


class TensorBoardObserver:
    """Writes events; a resumed run replaces what was written after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def start(self, info: dict[str, Any]) -> None:
        """Open an event file; steps after the one resumed from are purged from what TensorBoard shows."""
        from torch.utils.tensorboard import SummaryWriter

        start = info["update"]
        self._writer = SummaryWriter(str(self._folder), purge_step=start + 1 if start else None)

    def metrics(self, row: dict[str, Any]) -> None:
        """One event per scalar."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["update"])
        if row["kind"] == "eval":  # seldom, and what people wait for
            self._writer.flush()

    def event(self, row: dict[str, Any]) -> None:
        """Notes as text; checkpoints are not shown."""
        if "text" in row:
            self._writer.add_text("notes", row["text"], row["update"])

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
