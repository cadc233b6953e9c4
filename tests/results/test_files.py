"""Writes that fail: the old file stays, no temporary is left, and people read one sentence with the path."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from vitscale.bench.run import check_out
from vitscale.cli import main
from vitscale.errors import DataError, OutputError
from vitscale.results.files import write_atomically
from vitscale.results.record import Identity, Measurement, Record
from vitscale.results.records import read_records, write_records


@pytest.fixture
def study(tmp_path: Path) -> Path:
    measured = Measurement(step_time_s=(0.1,) * 10)
    write_records(
        tmp_path / "study" / "records.jsonl",
        [Record(study="s", case="c", identity=Identity(world_size=1), measurement=measured)],
    )
    return tmp_path / "study"


def full(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def denied(*arguments: Any, **more: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def said(capsys: Any) -> str:
    text: str = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_path_and_leaves_nothing(
    study: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    assert main.run(["report", str(study)]) == 3
    text = said(capsys)
    assert f"the disk is full while writing {study / 'cases.csv'}; free some space" in text
    assert "resume" not in text
    assert [path.name for path in study.iterdir()] == ["records.jsonl"]
    (tmp_path / "t.csv").write_text("gpus,step_time_ms\n1,1\n")
    monkeypatch.setattr(os, "write", full)
    assert main.run(["import", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out")]) == 3
    text = said(capsys)
    assert f"the disk is full while writing {tmp_path / 'out' / 'records.jsonl'}; free some space" in text
    assert "resume" not in text
    assert not any((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_written_is_a_sentence(study: Path, monkeypatch: Any, capsys: Any) -> None:
    below = study / "records.jsonl" / "x.csv"  # no folder, not for root either
    assert main.run(["report", str(study), "--format", "md", "--export", str(below)]) == 2
    assert f"cannot write {below.parent}" in said(capsys)
    assert main.run(["report", str(study), "--format", "md", "--figures", str(below)]) in (2, 3)
    said(capsys)
    (study / "t.csv").write_text("gpus,step_time_ms\n1,1\n")
    assert main.run(["import", str(study / "t.csv"), "--out", str(below)]) == 2
    assert "name another folder" in said(capsys)
    monkeypatch.setattr(os, "fsync", denied)
    assert main.run(["report", str(study)]) == 2
    text = said(capsys)
    assert f"cannot write {study / 'cases.csv'} (Permission denied); --format terminal" in text


def test_a_bench_that_cannot_write_is_refused(study: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(OutputError, match=r"Permission denied.*name another --out"):
        check_out(study)


def test_records_that_cannot_be_read_are_a_sentence(study: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"cannot read .*records.jsonl \(Permission denied\)"):
        read_records(study)
    for command in (["report", str(study)], ["compare", str(study), str(study)]):
        assert main.run(command) == 2
        assert "cannot read" in said(capsys)
