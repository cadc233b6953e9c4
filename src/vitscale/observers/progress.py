"""What a person sees while training: a live bar on a terminal, plain lines elsewhere (files, schedulers, CI).

In: rows. Out: text on standard output. Numbers are shown as they come; nothing is computed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

PLAIN_INTERVAL_S = 10.0


class ProgressObserver:
    """A bar where there is a terminal; else a line at most every 10 s, and at the last update."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._clock = clock
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._total = 0
        self._next_line = 0.0

    def start(self, info: dict[str, Any]) -> None:
        """Say what runs, and the notes on data that are said once."""
        self._total = info["total_updates"]
        self._say(headline(info))
        for note in info["notes"]:
            self._say(f"note: {note}")
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("update"),
                MofNCompleteColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=self._total, completed=info["update"], text="")
            self._bar.start()

    def metrics(self, row: dict[str, Any]) -> None:
        """Move the bar, or print a line."""
        if row["kind"] == "eval":
            self._say(eval_line(row))
        elif self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=row["update"], text=train_text(row))
        elif self._clock() >= self._next_line or row["update"] >= self._total:
            self._next_line = self._clock() + PLAIN_INTERVAL_S
            self._say(f"update {row['update']}/{self._total}  {train_text(row)}")

    def event(self, row: dict[str, Any]) -> None:
        """Notes only: checkpoints are written often and are the manifest's business."""
        if row["kind"] == "note":
            self._say(f"note: {row['text']}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)


def headline(info: dict[str, Any]) -> str:
    """What runs, on what, from where."""
    engine = info["engine"] + (f" zero_stage {info['zero_stage']}" if info["engine"] == "deepspeed" else "")
    size = info["world_size"]
    where = f"{size} process{'es' if size > 1 else ''} on {info['device'].split(':')[0]}"
    batch = f"{info['micro_batch_size']} x {info['grad_accum_steps']} x {size} = {info['global_batch_size']} images"
    begin = f"resumed at update {info['update']} of" if info["update"] else "updates:"
    return (
        f"{engine}, {where}, {info['precision']}, batch {batch}; {info['train_images']:,} train and "
        f"{info['val_images']:,} val images; {begin} {info['total_updates']:,}"
    )


def train_text(row: dict[str, Any]) -> str:
    """Epoch, loss, learning rate, speed, memory and time left."""
    parts = [
        f"epoch {row['epoch']:.2f}",
        f"loss {row['loss']:.4f}",
        f"lr {row['lr']:.2e}",
        f"{row['images_per_s']:,.0f} images/s",
    ]
    memory = row.get("peak_allocated_bytes", row.get("peak_rss_bytes"))
    if memory is not None:
        parts.append(f"{memory / 2**30:.2f} GiB")
    if row.get("skipped"):
        parts.append(f"{row['skipped']} skipped")
    parts.append(f"ETA {duration(row['eta_s'])}")
    return "  ".join(parts)


def eval_line(row: dict[str, Any]) -> str:
    """Accuracy as people read it."""
    top5 = "" if row.get("top5") is None else f"  top-5 {100 * row['top5']:.2f} %"
    return (
        f"eval at update {row['update']} (epoch {row['epoch']:.2f})  top-1 {100 * row['top1']:.2f} %{top5}  "
        f"loss {row['loss']:.4f}"
    )


def duration(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def span(seconds: float) -> str:
    """An estimate for people: as duration, and in days above two of them, where hours and seconds say nothing."""
    days = seconds / 86_400
    return duration(seconds) if days <= 2 else f"{days:,.1f} days"
