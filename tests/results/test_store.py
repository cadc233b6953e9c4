"""Append-only rows: whole lines, over crashes and several writers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitscale.errors import DataError
from vitscale.results.store import JsonlWriter, read_rows


def append(path: Path, *rows: dict[str, object]) -> None:
    writer = JsonlWriter(path)
    for row in rows:
        writer.append(row)
    writer.close()


def test_rows_are_readable_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    writer = JsonlWriter(path)
    writer.append({"a": 1})
    assert list(read_rows(path)) == [{"a": 1}]
    writer.append({"a": [1.5, None, "x"]})
    assert len(list(read_rows(path))) == 2
    writer.close()


def test_a_second_writer_appends(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, {"a": 1})
    append(path, {"a": 2})
    assert [row["a"] for row in read_rows(path)] == [1, 2]


def test_a_half_written_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, {"a": 1}, {"a": 2})
    path.write_bytes(path.read_bytes()[:-4])
    append(path, {"a": 3})
    assert [row["a"] for row in read_rows(path)] == [1, 3]


def test_non_finite_numbers_stay_json_and_visible(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, {"loss": float("nan"), "all": (1.0, float("-inf")), "in": {"x": float("inf")}})
    assert json.loads(path.read_text()) == {"loss": "nan", "all": [1.0, "-inf"], "in": {"x": "inf"}}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(DataError, match="line 1 is not a JSON object"):
        list(read_rows(path))
