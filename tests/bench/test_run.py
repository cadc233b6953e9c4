"""bench.run and bench.table: rows in fresh processes, as records, and what people read of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitscale.bench import run as bench_run
from vitscale.bench.case import FP32, Case
from vitscale.bench.run import Bench, run_bench
from vitscale.bench.table import table_rows
from vitscale.config.load import load_config
from vitscale.results.record import Identity, Measurement, Record
from vitscale.results.records import read_records

ROWS = [
    Case("plain timm loop", "timm_loop", FP32),
    Case("broken", "no_such_peer", FP32),
    Case("absent", None, FP32, problem="it is not installed"),
]


@pytest.mark.dist
def test_rows_become_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(config: Any, world_size: int, device_type: str) -> list[Case]:
        tree = config.model_dump(mode="json")
        return [Case("vitscale single", None, FP32, config=tree), *ROWS]

    monkeypatch.setattr(bench_run, "cases", rows)
    bench = Bench(load_config("digits"), 1, "cpu", (), warmup=2, updates=5, trace=0, rounds=1)
    told: list[tuple[str, bool]] = []
    made = run_bench(bench, tmp_path, lambda _i, _n, row, outcome: told.append((row.who, outcome is not None)))
    records, broken = read_records(tmp_path)
    assert broken == 0
    assert list(records) == made
    assert [record.outcome for record in records] == ["ok", "ok", "error", "skipped"]
    for record in records[:2]:
        assert record.measurement is not None
        assert len(record.measurement.step_time_s) == 5
        assert set(record.measurement.images) == {32}
        assert record.identity.precision == "fp32/fp32/fp32"
    assert records[2].cause is not None
    assert "no_such_peer" in records[2].cause.sentence
    assert told[:2] == [("vitscale single", False), ("vitscale single", True)]


def record(who: str, steps: list[float], precision: str = "fp32/fp32/fp32", **measured: Any) -> Record:
    return Record(
        study="bench",
        case=f"{who} {precision}",
        axes={"who": who, "precision": precision, "compile": False},
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
        ("vitscale ddp", "640", "1.00", "0.64", "1.00 GiB", "32.0"),
        ("raw DDP", "320", "0.50", "", "1.00 GiB", "32.0"),
    ]
    assert tables["bf16/bf16/fp32"][0][:3] == ("raw FSDP2", "160", "")
