"""Numbers that cannot be: the section that holds one is missing, with a note; a world that cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitscale.analysis.summarise import summarise
from vitscale.cli import main
from vitscale.errors import DataError
from vitscale.results.record import Identity, Record
from vitscale.results.records import read_records

GOOD: dict[str, Any] = {
    "measurement": {"step_time_s": [0.1] * 10, "images": [16] * 10, "losses": [-1.0], "data_wait_s": [0.0] * 10},
    "learning": {"split": "val", "final_accuracy": 0.5},
    "epoch_times": {"mean_s": 2.0, "min_s": 1.0, "max_s": 3.0},
}


def study(folder: Path, *changes: dict[str, Any], identity: dict[str, Any] | None = None) -> Path:
    made = Record(study="s", case="c", identity=Identity(world_size=2)).model_dump(mode="json")
    lines = []
    for repeat, change in enumerate(changes):
        sections = {name: {**section, **change.get(name, {})} for name, section in GOOD.items()}
        row = {**made, **sections, "repeat": repeat, "identity": {**made["identity"], **(identity or {})}}
        lines.append(json.dumps({**row, "seconds": change.get("seconds", 1.0)}))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_what_can_be_is_left_alone(tmp_path: Path) -> None:
    (record,), _ = read_records(study(tmp_path, {}))
    assert None not in (record.measurement, record.learning, record.epoch_times, record.seconds)
    assert record.notes == ()


@pytest.mark.parametrize(
    ("section", "change", "why"),
    [
        ("measurement", {"step_time_s": [0.0] * 10}, "a step time is not above 0"),
        ("measurement", {"step_time_s": [0.1] * 9 + [-0.1]}, "a step time is not above 0"),
        ("measurement", {"step_time_s": [1e308] * 10}, "measurement.step_time_s.0 is more than 1e+07 s"),
        ("measurement", {"data_wait_s": [-1.0]}, "measurement.data_wait_s.0 is below 0"),
        ("measurement", {"images": [16] * 9}, "images has 9 values and step_time_s 10"),
        ("measurement", {"images": [0] * 10}, "an update had no images"),
        ("measurement", {"flops_per_image": 1e308}, "measurement.flops_per_image is more than 1e+24"),
        ("measurement", {"attribution": {"updates": 1, "seconds": {"forward": -1}}}, "seconds.forward is below 0"),
        ("learning", {"final_accuracy": 50}, "an accuracy is not between 0 and 1"),
        ("epoch_times", {"mean_s": 0}, "mean_s is not above 0"),
        ("epoch_times", {"mean_s": 4.0}, "mean_s is not between min_s and max_s"),
    ],
)
def test_a_section_with_an_impossible_number_is_missing(
    tmp_path: Path, section: str, change: dict[str, Any], why: str
) -> None:
    folder = study(tmp_path, {section: change}, {section: change})
    for record in read_records(folder)[0]:
        assert getattr(record, section) is None
        assert sum(bool(getattr(record, name)) for name in GOOD) == 2
        (note,) = record.notes
        assert note.startswith(f"{section} left out: ")
        assert why in note
    assert main.run(["report", str(folder)]) == 0


@pytest.mark.parametrize(
    "change",
    [{"world_size": 0}, {"world_size": -1}, {"world_size": 10**7}, {"micro_batch_size": 0}, {"global_batch_size": -4}],
)
def test_a_world_that_cannot_be_is_refused_with_its_line(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"line 1 .*identity.{next(iter(change))}"):
        read_records(study(tmp_path, {}, identity=change))


def test_the_report_says_what_it_left_out_and_counts_what_it_used(tmp_path: Path, capsys: Any) -> None:
    lost = {"measurement": {"step_time_s": [0.0] * 10}, "epoch_times": {"mean_s": 0}}
    folder = study(tmp_path, {}, {}, lost)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"kind": "ca')
    records, broken = read_records(folder)
    assert summarise(records, broken).cases[0].repeats == 2
    for form in ("md", "terminal"):
        assert main.run(["report", str(folder), "--format", form]) == 0
        shown = " ".join(capsys.readouterr().out.replace("\\", "").split())
        assert "measurement left out: a step time is not above 0" in shown
        assert "1 unreadable line of the records skipped." in shown
        assert "1 ok without a figure" in shown
