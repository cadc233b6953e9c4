"""Exports read back as what was recorded."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vitscale.errors import ConfigError
from vitscale.results.export import export_records
from vitscale.results.record import (
    Attribution,
    Cause,
    DeviceState,
    EpochTimes,
    Identity,
    Learning,
    Measurement,
    Point,
    Record,
)

RECORDS = [
    Record(
        study="s",
        case='engine=ddp <b>, "x"',
        axes={"engine": "ddp", "drop_path": 0.1},
        identity=Identity(world_size=2, engine="ddp", global_batch_size=32, lr=1e-3, device_names=("H200", "H200")),
        measurement=Measurement(
            step_time_s=(0.1, 0.2, 0.4),
            images=(32, 32, 32),
            losses=(1.0, float("nan")),
            data_wait_s=(0.01,),
            peak_allocated_bytes=(5, 9),
            attribution=Attribution(updates=10, seconds={"forward": 0.03}),
        ),
        learning=Learning(
            split="val",
            final_accuracy=0.5,
            points=(Point(update=10, images=320, seconds=1.5, accuracy=0.5),),
        ),
        started_at="2026-11-30T12:00:00+00:00",
        seconds=9.5,
    ),
    Record(
        study="s",
        case="c",
        axes={"drop_path": 0},
        outcome="oom",
        cause=Cause(sentence="full"),
        identity=Identity(world_size=1),
    ),
    Record(study="s", case="d", identity=Identity(world_size=1), epoch_times=EpochTimes(mean_s=7)),
]


def test_csv_has_a_row_per_record_and_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    export_records(RECORDS, tmp_path / "r.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text(), newline="")))
    assert [row["case"] for row in rows] == [record.case for record in RECORDS]
    first = rows[0]
    assert (first["median_step_time_s"], first["images_per_s"], first["updates"]) == ("0.2", "160.0", "3")
    assert (first["engine"], first["axis.drop_path"], first["device_names"]) == ("ddp", "0.1", "H200; H200")
    assert (first["peak_allocated_bytes"], first["traced_forward_s"], first["accuracy"]) == ("9", "0.03", "0.5")
    assert (rows[1]["outcome"], rows[1]["cause"], rows[1]["median_step_time_s"]) == ("oom", "full", "")
    assert rows[2]["epoch_time_s"] == "7.0"
    assert "axis.engine" not in first


def test_parquet_keeps_raw_values_and_its_types_do_not_depend_on_the_study(tmp_path: Path) -> None:
    export_records(RECORDS, tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["step_time_s"].to_pylist() == [[0.1, 0.2, 0.4], None, None]
    assert table["images"].to_pylist()[0] == [32, 32, 32]
    assert table["data_wait_s"].to_pylist()[0] == [0.01]
    assert table["axis.drop_path"].to_pylist() == [0.1, 0.0, None]
    export_records(RECORDS[2:], tmp_path / "one.parquet")
    one = pq.read_table(tmp_path / "one.parquet")
    for field in one.schema:
        assert table.schema.field(field.name).type == field.type, field.name


def test_log_lines_are_mllogs_form(tmp_path: Path) -> None:
    export_records(RECORDS, tmp_path / "r.log")
    lines = (tmp_path / "r.log").read_text().splitlines()
    assert all(re.fullmatch(r":::MLLOG \{.*\}", line) for line in lines)
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    for event in events:
        assert set(event) == {"namespace", "time_ms", "event_type", "key", "value", "metadata"}
    first = {event["key"]: event for event in events if event["metadata"]["case"] == RECORDS[0].case}
    start = first["run_start"]["time_ms"]
    assert first["run_start"]["event_type"] == "INTERVAL_START"
    assert first["run_stop"]["time_ms"] == start + 9500
    assert first["run_stop"]["metadata"]["status"] == "success"
    assert first["eval_accuracy"]["value"] == 0.5
    assert first["eval_accuracy"]["time_ms"] == start + 1500
    assert first["eval_accuracy"]["metadata"]["samples_count"] == 320
    assert first["global_batch_size"]["value"] == 32
    assert "opt_name" not in first  # not known, so not said
    failed = [event for event in events if event["metadata"]["case"] == "c" and event["key"] == "run_stop"]
    assert failed[0]["metadata"]["status"] == "aborted"


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known are \.csv, \.parquet, \.log"):
        export_records(RECORDS, tmp_path / "r.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(tmp_path: Path) -> None:
    made = Record(
        study="=1+1", case=" @x", outcome="error", cause=Cause(sentence="-2"), identity=Identity(world_size=1)
    )
    export_records([made], tmp_path / "t.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))
    assert (row["study"], row["case"], row["cause"]) == ("'=1+1", "' @x", "'-2")


def test_everything_that_a_record_knows_is_exported(tmp_path: Path) -> None:
    made = Record(
        study="s",
        case="full",
        mode="strong",
        fixed="per_device",
        order=7,
        outcome="error",
        cause=Cause(sentence="dead", rank=3, exit_code=137),
        identity=Identity(world_size=2, global_batch_size=32),
        measurement=Measurement(
            step_time_s=(0.1, 0.2, 0.4),
            flops_per_image=1e9,
            peak_flops=2e12,
            recompiles=2,
            skipped_updates=1,
            attribution=Attribution(updates=10, seconds={"step": 0.05}),
            device_state=(
                DeviceState(energy_j=10.0, power_w=300.0, sm_clock_mhz=1900, memory_clock_mhz=2600, throttled=False),
                DeviceState(energy_j=12.0, power_w=320.0, sm_clock_mhz=1980, temperature_c=60, throttled=True),
            ),
        ),
        learning=Learning(split="val", target=0.9, points=(Point(update=1, images=32, seconds=0.5, accuracy=0.2),)),
        epoch_times=EpochTimes(mean_s=7, min_s=6.5, max_s=8, epochs=4, includes_warmup=True),
        notes=("one", "two"),
    )
    expected = {
        "fixed": "per_device", "order": 7, "rank": 3, "exit_code": 137, "images_per_s": 160.0, "flops_per_image": 1e9,
        "peak_flops": 2e12, "recompiles": 2, "skipped_updates": 1, "traced_step_s": 0.05, "energy_j": 22.0,
        "power_w": 310.0, "sm_clock_mhz": 1940.0, "memory_clock_mhz": 2600.0, "temperature_c": 60.0, "throttled": True,
        "target": 0.9, "epoch_time_min_s": 6.5, "epoch_time_max_s": 8.0, "epochs": 4, "epochs_include_warmup": True,
        "notes": "one; two",
    }  # fmt: skip
    export_records([made], tmp_path / "f.parquet")
    (row,) = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert {name: row[name] for name in expected} == expected
    point = {"update": 1, "images": 32, "seconds": 0.5, "accuracy": 0.2, "loss": None}
    assert json.loads(row["learning_points"]) == [point]
    export_records([made], tmp_path / "f.csv")
    (text,) = csv.DictReader(io.StringIO((tmp_path / "f.csv").read_text()))
    assert {name: text[name] for name in expected} == {name: str(value) for name, value in expected.items()}
    assert json.loads(text["learning_points"]) == [point]


def test_a_table_of_epochs_has_images_per_s_as_its_report_has(tmp_path: Path) -> None:
    made = Record(
        study="s", case="e", identity=Identity(world_size=1, train_images=700), epoch_times=EpochTimes(mean_s=7)
    )
    export_records([made], tmp_path / "e.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "e.csv").read_text()))
    assert row["images_per_s"] == "100.0"
    export_records([made], tmp_path / "e.log")
    assert '"throughput": 100.0' in (tmp_path / "e.log").read_text()
