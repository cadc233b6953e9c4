"""bench.run and bench.table: rows in fresh processes, as records, and what people read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitscale.bench import run as bench_run
from vitscale.bench.case import FP32, Case
from vitscale.bench.run import Bench, run_bench
from vitscale.bench.table import ours_failed, remarks, table_rows
from vitscale.cli.bench import bench as bench_command
from vitscale.config.load import load_config
from vitscale.errors import RunFolderError
from vitscale.results.record import Attribution, Identity, Measurement, Record
from vitscale.results.records import read_records
from vitscale.study.case import Job, Outcome

ROWS = [
    Case("plain timm loop", "timm_loop", FP32),
    Case("broken", "no_such_peer", FP32),
    Case("absent", None, FP32, problem="it is not installed"),
]


@pytest.mark.dist
def test_rows_become_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(config: Any, world_size: int, device_type: str, only: Any) -> list[Case]:
        tree = config.model_dump(mode="json")
        return [Case("vitscale single", None, FP32, config=tree), *ROWS]

    monkeypatch.setattr(bench_run, "cases", rows)
    bench = Bench(load_config("digits"), 1, "cpu", (), warmup=2, updates=5, trace=0, rounds=1)
    told: list[tuple[str, bool]] = []
    made = run_bench(bench, tmp_path, lambda _i, _n, row, outcome: told.append((row.who, outcome is not None)))
    records, broken = read_records(tmp_path)
    assert broken == 0
    assert sorted(records, key=lambda record: made.index(record)) == made
    assert [record.outcome for record in made] == ["ok", "ok", "error", "skipped"]  # in the order of the rows
    for record in made[:2]:
        assert record.measurement is not None
        assert len(record.measurement.step_time_s) == 5
        assert set(record.measurement.images) == {32}
        assert record.identity.precision == "fp32/fp32/fp32"
    assert made[2].cause is not None
    assert "no_such_peer" in made[2].cause.sentence
    assert told[0::2] == [(who, False) for who, _ in told[1::2]]
    with pytest.raises(RunFolderError, match="holds records already"):
        run_bench(bench, tmp_path)


def test_every_round_holds_each_row_once_in_an_order_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Case(f"row {number}", None, FP32) for number in range(8)]
    jobs: list[Job] = []

    def pretend(job: Job, _: Path) -> Outcome:
        jobs.append(job)
        return Outcome("skipped")

    monkeypatch.setattr(bench_run, "cases", lambda *_: rows)
    monkeypatch.setattr(bench_run, "run_job", pretend)
    bench = Bench(load_config("digits"), 1, "cpu", (), warmup=2, updates=5, trace=0, rounds=2)
    made = run_bench(bench, tmp_path / "a")
    assert [(record.axes["who"], record.repeat) for record in made] == [
        (f"row {number}", repeat) for number in range(8) for repeat in (0, 1)
    ]
    names = [job.name for job in jobs]
    assert {name[-1] for name in names[:8]} == {"0"}
    assert [name[:-1] for name in names[:8]] != [name[:-1] for name in names[8:]]
    assert {job.hang_s for job in jobs} == {30.0}
    run_bench(bench, tmp_path / "b")
    assert [job.name for job in jobs[16:]] == names  # the seed is fixed


def record(who: str, steps: list[float], precision: str = "fp32/fp32/fp32", **measured: Any) -> Record:
    return Record(
        study="bench",
        case=f"{who} {precision}",
        axes={"who": who, "precision": precision},
        identity=Identity(world_size=1, precision=precision, micro_batch_size=32, global_batch_size=64),
        measurement=Measurement(step_time_s=tuple(steps), peak_allocated_bytes=(2**30,), **measured),
    )


def test_the_table_compares_within_a_triple() -> None:
    records = [
        record("vitscale ddp", [0.1, 0.2, 0.1], flops_per_image=1e9, peak_flops=1e12),
        record("raw DDP", [0.2]),
        record("raw FSDP2", [0.4], "bf16/bf16/fp32"),
    ]
    tables = table_rows(records)
    assert tables["fp32/fp32/fp32"] == [
        ("vitscale ddp", "640", "1.00", "0.64", "1.00 GiB", "32.0", ""),
        ("raw DDP", "320", "0.50", "", "1.00 GiB", "32.0", ""),
    ]
    assert tables["bf16/bf16/fp32"][0][:3] == ("raw FSDP2", "160", "")


def test_where_time_goes_is_told_in_percent() -> None:
    seconds = {"data_wait": 0.0001, "forward": 0.029, "backward": 0.0609, "optimizer": 0.01}
    marked = record("vitscale ddp", [0.1], attribution=Attribution(updates=10, seconds=seconds))
    peer = Attribution(updates=10, seconds={"step": 0.2}, idle_s=0.08)
    rows = table_rows([marked, record("raw DDP", [0.2], attribution=peer)])["fp32/fp32/fp32"]
    assert rows[0][-1] == "forward 29%, backward 61%, optimizer 10%"
    assert rows[1][-1] == "step 100%, device idle 40%"


def test_rounds_count_and_not_their_updates() -> None:
    rounds = [record("vitscale ddp", [0.1]), record("vitscale ddp", [0.2] * 9), record("vitscale ddp", [0.1])]
    assert table_rows(rounds)["fp32/fp32/fp32"][0][1] == "640"
    assert remarks(rounds) == []


def test_rows_of_one_round_are_named() -> None:
    ours, theirs = record("vitscale ddp", [0.1]), record("raw DDP", [0.2])
    assert remarks([ours, theirs])[0].startswith("every row: one round")
    assert remarks([ours, ours, theirs])[0].startswith("raw DDP fp32/fp32/fp32: one round")
    lost = theirs.model_copy(update={"measurement": None, "outcome": "error"})
    assert remarks([ours, lost])[0].startswith("every row: one round")


def test_memory_that_nobody_measured_is_empty() -> None:
    made = record("vitscale ddp", [0.1])
    assert made.measurement is not None
    bare = made.model_copy(update={"measurement": made.measurement.model_copy(update={"peak_allocated_bytes": ()})})
    assert table_rows([bare])["fp32/fp32/fp32"][0][4:6] == ("", "")


def test_only_our_own_failures_count() -> None:
    lost = {"measurement": None, "outcome": "error"}
    ours, theirs = (record(who, [0.1]).model_copy(update=lost) for who in ("vitscale ddp", "raw DDP"))
    assert ours_failed([ours, theirs, record("vitscale ddp", [0.1])]) == [ours]


@pytest.mark.parametrize(("outcome", "code"), [("ok", 0), ("error", 3)])
def test_the_command_fails_with_our_own_row(
    outcome: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [record("vitscale ddp", [0.1]).model_copy(update={"outcome": outcome})]
    monkeypatch.setattr(bench_run, "run_bench", lambda *_: made)
    found = bench_command("digits", [], 1, tmp_path, 5, 1, 1, None, "cpu")
    assert found == code
    told = capsys.readouterr()
    assert "one round" in told.out
    assert ("failed: vitscale ddp" in told.err) == bool(code)


def test_it_says_beforehand_what_is_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    from vitscale.cli.bench import _progress

    tell, row = _progress(), ROWS[0]
    tell(0, 7, row, None)
    tell(0, 7, row, Outcome("error", sentence="two\nlines"))
    tell(1, 7, row, None)
    first, second, _ = capsys.readouterr().out.split("\n")
    assert first.startswith("7 rows, one after the other; DeepSpeed's may compile")
    assert second.endswith("error: two lines")
