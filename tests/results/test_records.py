"""records.jsonl: whole records over crashes; newer schemas, broken lines and numbers that are none."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitscale.errors import DataError
from vitscale.results.record import (
    SCHEMA,
    Attribution,
    Cause,
    Communication,
    DeviceState,
    EpochTimes,
    Identity,
    Learning,
    Measurement,
    Point,
    Record,
)
from vitscale.results.records import RecordStore, latest, read_records, read_study, write_records


def record(**more: Any) -> Record:
    return Record(**{"study": "s", "case": "a<b>/../c", "identity": Identity(world_size=2), **more})


def write(folder: Path, *records: Record) -> Path:
    with RecordStore(folder / "records.jsonl") as store:
        for made in records:
            store.append(made)
    return folder / "records.jsonl"


FULL = record(
    axes={"engine": "ddp", "compile": True, "micro_batch_size": 1, "lr": 1.5, "none": None},
    measurement=Measurement(step_time_s=(0.1, 0.2), images=(32, 32), losses=(1.5, 0.5)),
    learning=Learning(split="val", points=(Point(update=1, images=2, seconds=0.5, accuracy=0.25),)),
    config={"train": {"seed": 1}},
)


def test_what_is_appended_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, FULL, record(repeat=1))
    assert read_records(path) == ((FULL, record(repeat=1)), 0)
    assert read_records(tmp_path) == read_records(path)
    axes = read_records(path)[0][0].axes
    assert [type(value) for value in axes.values()] == [str, bool, int, float, type(None)]


def test_a_cut_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path, FULL, record(repeat=1))
    text = path.read_bytes()
    path.write_bytes(text[:-40])
    assert read_records(path) == ((FULL,), 1)
    write(tmp_path, record(repeat=2))  # the next process goes on behind it
    assert read_records(path) == ((FULL, record(repeat=2)), 1)


def test_a_line_cut_at_any_byte_is_never_another_record(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    text = path.read_bytes()
    for length in range(1, len(text) - 1, 7):
        path.write_bytes(text[:length])
        assert read_records(path) == ((), 1)


def test_a_process_killed_while_it_writes_loses_no_finished_record(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_records import FULL
from vitscale.results.records import RecordStore
store = RecordStore(Path({str(tmp_path)!r}) / 'records.jsonl')
for number in range(10**6):
    store.append(FULL.model_copy(update={{'repeat': number}}))
    print(number, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    seen = [int(child.stdout.readline()) for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    seen += [int(line) for line in child.stdout.read().split() if line.isdigit()]
    child.wait()
    child.stdout.close()
    records, broken = read_records(tmp_path)
    assert [made.repeat for made in records][: len(seen)] == seen
    assert broken in (0, 1)


def test_a_newer_schema_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    newer = {**FULL.model_dump(mode="json"), "schema_version": SCHEMA + 1, "field_of_the_future": 1}
    path.write_text(path.read_text() + json.dumps(newer) + "\n")
    with pytest.raises(DataError, match=r"line 2 has schema version 2.*reads up to version 1; upgrade vitscale"):
        read_records(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"kind": "case"}', "line 1 is not a record of schema version 1: study: Field required"),
        ("[1, 2]", "line 1 is not a JSON object"),
        ("3", "line 1 is not a JSON object"),
    ],
)
def test_lines_that_are_no_records_are_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=words):
        read_records(path)


def test_an_unknown_field_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**FULL.model_dump(mode="json"), "sped": 1}) + "\n")
    with pytest.raises(DataError, match="sped"):
        read_records(path)


def test_a_diverged_loss_is_data(tmp_path: Path) -> None:
    made = record(measurement=Measurement(step_time_s=(0.1,), losses=(1.0, math.nan, math.inf)))
    ((back,), _) = read_records(write(tmp_path, made))
    assert back.measurement is not None
    assert back.measurement.step_time_s == (0.1,)
    assert math.isnan(back.measurement.losses[1])
    assert back.notes == ()


@pytest.mark.parametrize("spelling", ["NaN", "Infinity", '"nan"', '"-inf"'])
def test_a_time_that_is_no_number_takes_its_section_with_it(tmp_path: Path, spelling: str) -> None:
    path = write(tmp_path, FULL)
    path.write_text(path.read_text().replace("0.2]", f"{spelling}]", 1))
    ((back,), broken) = read_records(path)
    assert broken == 0
    assert back.measurement is None
    assert back.learning == FULL.learning
    assert back.notes == ("measurement left out: measurement.step_time_s.1 is not a finite number",)


def test_numbers_that_are_none_elsewhere_are_read_as_unknown(tmp_path: Path) -> None:
    path = write(tmp_path, record(seconds=math.nan, identity=Identity(world_size=1, lr=math.inf)))
    ((back,), _) = read_records(path)
    assert back.seconds is None
    assert back.identity.lr is None
    assert len(back.notes) == 2


def test_a_missing_store_and_an_empty_study_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"records.jsonl does not exist; give the folder of a study"):
        read_records(tmp_path)
    path = write(tmp_path)
    assert read_records(path) == ((), 0)
    with pytest.raises(DataError, match="holds no records; run the study"):
        read_study(tmp_path)
    path.write_text('{"kind"')
    with pytest.raises(DataError, match="holds no records but 1 broken line"):
        read_study(tmp_path)


def test_the_last_try_of_a_case_counts() -> None:
    first, again = record(outcome="error"), record(outcome="ok")
    other = record(repeat=1)
    assert latest([first, other, again]) == (other, again)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    write_records(path, [FULL])
    assert read_records(path) == ((FULL,), 0)

    def breaks() -> Any:
        yield record(repeat=5)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        write_records(path, breaks())
    assert read_records(path) == ((FULL,), 0)
    write_records(path, [record(repeat=7)])
    assert read_records(path)[0][0].repeat == 7
    assert os.listdir(path.parent) == ["records.jsonl"]


def test_docs_name_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    parts = (Record, Cause, Identity, Measurement, DeviceState, Communication, Attribution, Learning, Point, EpochTimes)
    for part in parts:
        section = text.split(f"\n## {part.__name__}\n")[1].split("\n## ")[0]
        cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
        assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(part.model_fields), part.__name__
