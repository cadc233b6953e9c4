"""A study's records.jsonl: append records, read them back after any crash. Torch-free.

In: Records from the study's parent or an importer. Out: the file, one record a line, and the records read from it with
the number of lines that a crash left broken. What records mean is analysis' business.

A number that is none (NaN, infinity) is data only where it is a loss: a run that diverged. Anywhere else a figure that
stands beside it cannot be trusted either, so its whole section (measurement, learning, epoch_times) is read as
missing, and a note of the record says which value it was. So are numbers that cannot be (possible.py). The file keeps
what was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from vitscale.errors import DataError
from vitscale.results.files import whole_file
from vitscale.results.possible import LEFT_OUT, possible
from vitscale.results.record import RECORDS_FILE, SCHEMA, Record
from vitscale.results.store import JsonlWriter

_SECTIONS = ("measurement", "learning", "epoch_times")
_LOSSES = frozenset({"losses", "loss"})
_NO_NUMBERS = frozenset({"nan", "inf", "-inf", "infinity", "-infinity"})  # how JsonlWriter writes them, and others do


class RecordStore:
    """Appends to one records.jsonl; a record is with the kernel when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)

    def append(self, record: Record) -> None:
        """Append one record."""
        self._writer.append(record.model_dump(mode="python"))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(path: Path) -> tuple[tuple[Record, ...], int]:
    """Read a records.jsonl, or the one in a study's folder: all records in order, and the number of broken lines.

    A line that a crash cut is skipped and counted. A record of a newer schema, or a line that is no record at all, is
    a DataError that names the line: reading on would lose something without a word.
    """
    file = path
    try:
        file = path / RECORDS_FILE if path.is_dir() else path
        if not file.is_file():
            raise DataError(f"{file} does not exist; give the folder of a study or its {RECORDS_FILE}")
        rows = [(None if row is None else _record(row, f"{file} line {number}")) for number, row in _rows(file)]
    except OSError as error:
        raise DataError(f"cannot read {file} ({error.strerror or error}); make it readable first") from None
    records = tuple(record for record in rows if record is not None)
    return records, len(rows) - len(records)


def read_study(path: Path) -> tuple[tuple[Record, ...], int]:
    """As `read_records`, for those who need something to show: a study without one record is a DataError."""
    records, broken = read_records(path)
    if not records:
        cut = f" but {broken} broken line{'s' if broken > 1 else ''}" if broken else ""
        raise DataError(f"{path} holds no records{cut}; run the study, or wait for its first case")
    return records, broken


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a whole file of records at once, or nothing: for imports, which have all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.unlink(missing_ok=True)
        with RecordStore(temporary) as store:
            for record in records:
                store.append(record)


def latest(records: Iterable[Record]) -> tuple[Record, ...]:
    """Keep the last record of each case and repeat: a case that was tried again counts as its last try."""
    last: dict[tuple[str, str, int], Record] = {}
    for record in records:
        key = (record.study, record.case, record.repeat)
        last.pop(key, None)  # so that the order is that of the tries that count
        last[key] = record
    return tuple(last.values())


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield number, None
                continue
            if not isinstance(row, dict):
                raise DataError(f"{file} line {number} is not a JSON object; it was not written by vitscale")
            yield number, row


def _record(row: dict[str, Any], where: str) -> Record:
    version = row.get("schema_version")
    if isinstance(version, int) and version > SCHEMA:
        raise DataError(
            f"{where} has schema version {version}, but this vitscale reads up to version {SCHEMA}; upgrade vitscale"
        )
    try:
        return possible(Record.model_validate(_finite(row)))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the record"
        raise DataError(f"{where} is not a record of schema version {SCHEMA}: {field}: {first['msg']}") from None


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Read sections that hold a number that is none as missing, and say so in the notes."""
    notes = []
    for section in _SECTIONS:
        if field := _not_finite(row.get(section), section):
            row[section] = None
            notes.append(f"{section} {LEFT_OUT} {field} is not a finite number")
    identity = row.get("identity")
    for part in (row, identity if isinstance(identity, dict) else {}):
        for key in ("seconds", "lr"):
            if key in part and _not_finite(part[key], key):
                part[key] = None
                notes.append(f"{key} {LEFT_OUT} it is not a finite number")
    if notes:
        row["notes"] = [*(row.get("notes") or ()), *notes]
    return row


def _not_finite(value: Any, path: str) -> str | None:
    """Name the first value under `path`, losses left out, that is no finite number; None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, str):
        return path if value.lower() in _NO_NUMBERS else None
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        if key not in _LOSSES and (found := _not_finite(item, f"{path}.{key}")):
            return found
    return None
