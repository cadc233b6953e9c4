"""The table drops what is empty, lifts what is shared, and its CSV keeps raw values."""

import csv
import io
from dataclasses import replace

import report_making as make

from vitscale.report.order import in_reading_order
from vitscale.report.table import table, to_csv


def rows(summary):
    return list(csv.DictReader(io.StringIO(to_csv(summary))))


def test_what_all_cases_share_stands_above_the_table():
    made = table(make.scaling_study())
    shared = dict(made.shared)
    assert shared["precision"] == "bf16/bf16/bf16"
    assert shared["img_size"] == "224"
    names = [column.name for column in made.columns]
    assert "precision" not in names
    assert "lr" not in names  # not known in any case
    assert {"engine", "world_size", "images_per_s", "accuracy"} <= set(names)


def test_shuffled_cases_are_listed_by_engine_axes_and_devices():
    study = make.scaling_study()
    shuffled = replace(study, cases=study.cases[::-1], series=study.series[::-1])
    labels = table(in_reading_order(shuffled)).labels
    assert labels[:4] == ("single, 1 GPU", "ddp, 1 GPU", "ddp, 2 GPUs", "ddp, 4 GPUs")
    assert labels[-1] == "DeepSpeed ZeRO 3, 8 GPUs"
    assert [one.label for one in in_reading_order(shuffled).series][:2] == ["ddp", "fsdp2"]
    numbers = [make.case(f"m{m}", micro=m) for m in (256, 16, 64)]
    assert [c.name for c in in_reading_order(make.summary(*numbers)).cases] == ["m16", "m64", "m256"]


def test_a_single_case_keeps_its_settings():
    made = table(make.summary(make.case("a")))
    assert made.shared == ()
    assert "precision" in [column.name for column in made.columns]


def test_cells_have_text_interval_and_value():
    made = table(make.scaling_study())
    place = [column.name for column in made.columns].index("step_time_s")
    cell = made.rows[made.labels.index("ddp, 8 GPUs")][place]
    assert cell.text == "10.7"
    assert cell.interval == "10.6 to 10.8"
    assert 0.0106 < cell.value < 0.0108


def test_outcomes_in_words():
    summary = make.summary(make.case("a", outcomes={"ok": 2, "timeout": 1}), make.case("b", None))
    place = [column.name for column in table(summary).columns].index("outcome")
    assert [row[place].text for row in table(summary).rows] == ["2 ok, 1 timed out", "out of memory"]


def test_csv_is_raw_and_complete():
    found = {row["case"]: row for row in rows(make.scaling_study())}
    assert len(found) == 25
    row = found["ddp-x8"]
    assert 0.0106 < float(row["step_time_s"]) < 0.0108
    assert float(row["step_time_s_low"]) < float(row["step_time_s"]) < float(row["step_time_s_high"])
    assert int(row["peak_allocated_bytes"]) > 2**30
    assert row["precision"] == "bf16/bf16/bf16"  # kept, though it is the same in all cases
    assert found["single-x1"]["images_per_s"] == ""


def test_a_spreadsheet_runs_no_case_name():
    text = to_csv(make.hostile_study())
    for row in csv.reader(io.StringIO(text)):
        assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    assert "'=HYPERLINK" in text
