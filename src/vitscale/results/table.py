"""Somebody else's table: a CSV file read into rows of known columns, each cell checked. Torch-free.

In: a file with a header. Out: rows of text by column name, with the line that each came from. What a row means as a
measurement is published.py's business.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vitscale.errors import DataError

# Our name -> names that tables use.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "world_size": ("world_size", "gpus", "num_gpus", "n_gpus", "devices", "num_devices", "processes"),
    "nodes": ("nodes", "num_nodes"),
    "mode": ("mode", "kind", "scaling"),
    "device": ("device", "gpu", "device_name", "gpu_name"),
    "cluster": ("cluster", "system", "machine"),
    "placement": ("placement",),
    "data_source": ("data_source", "dataset", "data"),
    "data_fraction": ("data_fraction",),
    "train_images": ("train_images", "num_images"),
    "micro_batch_size": ("micro_batch_size", "batch_per_gpu", "batch_per_device", "local_batch_size"),
    "grad_accum_steps": ("grad_accum_steps", "gradient_accumulation_steps"),
    "global_batch_size": ("global_batch_size",),
    "model": ("model",),
    "img_size": ("img_size", "resolution"),
    "engine": ("engine",),
    "zero_stage": ("zero_stage",),
    "precision": ("precision", "dtype"),
    "optimizer": ("optimizer",),
    "lr": ("lr", "learning_rate"),
    "lr_scaling": ("lr_scaling",),
    "warmup_updates": ("warmup_updates",),
    "epochs": ("epochs",),
    "epoch_mean_s": ("epoch_mean_s", "seconds_per_epoch", "epoch_time_s"),
    "epoch_min_s": ("epoch_min_s", "seconds_min"),
    "epoch_max_s": ("epoch_max_s", "seconds_max"),
    "includes_warmup": ("includes_warmup",),
    "step_time_s": ("step_time_s",),
    "step_time_ms": ("step_time_ms", "step_ms"),
    "images_per_s": ("images_per_s", "images_per_second", "throughput"),
    "train_accuracy": ("train_accuracy", "final_train_accuracy"),
    "val_accuracy": ("val_accuracy", "final_val_accuracy"),
    "test_accuracy": ("test_accuracy", "final_test_accuracy"),
    "data_wait_ms": ("data_wait_ms", "data_ms", "loader_ms"),
    "forward_ms": ("forward_ms",),
    "backward_ms": ("backward_ms", "backward_compute_ms"),
    "allreduce_ms": ("allreduce_ms", "all_reduce_ms"),
    "optimizer_ms": ("optimizer_ms", "step_optimizer_ms"),
    "repeat": ("repeat", "run", "trial"),
    "note": ("note", "notes", "comment"),
}
TIMES = ("epoch_mean_s", "step_time_s", "step_time_ms", "images_per_s", "forward_ms")
_MOST = 1e12  # of anything that is counted here
_BY_ALIAS = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


@dataclass(frozen=True)
class Row:
    """One row; cells are stripped, and empty ones left out."""

    where: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str | None:
        return self.cells.get(column)

    def number(self, column: str) -> float | None:
        """A finite number that is not negative."""
        if (cell := self.cells.get(column)) is None:
            return None
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise DataError(f"{self.where}, column {column}: '{cell}' is not a number of 0 or more")
        return value

    def positive(self, column: str) -> float | None:
        """A number above zero: times and rates."""
        value = self.number(column)
        if value == 0:
            raise DataError(f"{self.where}, column {column}: must be above 0")
        return value

    def whole(self, column: str) -> int | None:
        """A whole number above zero."""
        value = self.positive(column)
        if value is not None and value != int(value):
            raise DataError(f"{self.where}, column {column}: '{self.cells[column]}' is not a whole number")
        if value is not None and value > _MOST:
            raise DataError(f"{self.where}, column {column}: '{self.cells[column]}' is more than {_MOST:.0e}")
        return None if value is None else int(value)

    def share(self, column: str) -> float | None:
        """A number from 0 to 1."""
        value = self.number(column)
        if value is not None and value > 1:
            raise DataError(f"{self.where}, column {column}: {value:g} is above 1; write shares, not percent")
        return value

    def flag(self, column: str) -> bool | None:
        """true or false."""
        cell = self.cells.get(column)
        if cell is not None and cell.lower() not in ("true", "false"):
            raise DataError(f"{self.where}, column {column}: '{cell}' is neither true nor false")
        return None if cell is None else cell.lower() == "true"


@dataclass(frozen=True)
class Table:
    """Rows, and the columns that nobody here understands."""

    rows: tuple[Row, ...]
    unknown: tuple[str, ...]


def read_table(path: Path, facts: Mapping[str, str]) -> Table:
    """Read a CSV file with a header (comma, semicolon or tab). facts fill cells that are empty or have no column."""
    for name in facts:
        if name not in ALIASES:
            raise DataError(f"--set {name}: no such column; known are {', '.join(ALIASES)}")
    lines = list(_reader(path))
    if not lines:
        raise DataError(f"{path} is empty; it must have a header and at least one row")
    header = [cell.strip().lower() for cell in lines[0]]
    names = [_BY_ALIAS.get(cell) for cell in header]
    _check_header(path, names, facts)
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise DataError(f"{path} row {number} has {len(cells)} cells, but the header has {len(header)}")
        known = {name: text for name, cell in zip(names, cells, strict=True) if name and (text := cell.strip())}
        rows.append(Row(f"{path} row {number}", {**facts, **known}))
    if not rows:
        raise DataError(f"{path} has a header but no rows")
    return Table(tuple(rows), tuple(cell for cell, name in zip(header, names, strict=True) if name is None and cell))


def _reader(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read the table {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}); a table is a CSV file") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from None


def _check_header(path: Path, names: list[str | None], facts: Mapping[str, str]) -> None:
    known = [name for name in names if name]
    if twice := next((name for name in known if known.count(name) > 1), None):
        raise DataError(f"{path} has two columns for {twice} ({', '.join(ALIASES[twice])} all mean it)")
    if "world_size" not in known and "world_size" not in facts:
        raise DataError(f"{path} has no column for the number of devices ({', '.join(ALIASES['world_size'])})")
    if not set(TIMES) & set(known):
        wanted = ", ".join(ALIASES[name][-1] for name in TIMES)
        raise DataError(f"{path} has no column with a time; known are {wanted}")
