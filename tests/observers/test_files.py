"""metrics.jsonl, TensorBoard and scalars: what was told is what can be read back, over a resume as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitscale.observers.metrics_file import MetricsFileObserver
from vitscale.observers.scalars import scalars
from vitscale.observers.tensorboard import TensorBoardObserver
from vitscale.results.store import read_rows


def row(update: int, loss: float) -> dict[str, Any]:
    return {"kind": "train", "update": update, "loss": loss, "losses": [loss], "grad_norm": None}


def test_metrics_file_keeps_all_sessions(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for update in (0, 10):
        observer = MetricsFileObserver(path)
        observer.start({"update": update})
        observer.metrics(row(update + 10, 0.5))
        observer.event({"kind": "note", "update": update + 10, "text": "x"})
        observer.close()
    rows = list(read_rows(path))
    assert [r["kind"] for r in rows] == ["start", "train", "note"] * 2
    assert rows[1]["losses"] == [0.5]
    assert all(r["time"] > 0 for r in rows)


def test_scalars_are_finite_numbers_with_their_kind() -> None:
    values = scalars(
        {
            **row(3, float("nan")),
            "lr": 1e-3,
            "skipped": 0,
            "device": "cpu",
            "applied": True,
            "peak_allocated_bytes": 2**29,
        }
    )
    assert values == {"train/lr": 1e-3, "train/skipped": 0.0, "train/peak_allocated_gib": 0.5}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's protobuf
def test_tensorboard_shows_the_later_session_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, losses in ((0, (1.0, 2.0, 3.0)), (10, (20.0, 30.0))):
        observer = TensorBoardObserver(tmp_path)
        observer.start({"update": start})
        for number, loss in enumerate(losses, 1):
            observer.metrics(row(start + 10 * number, loss))
        observer.event({"kind": "note", "update": start, "text": "x"})
        observer.metrics({"kind": "eval", "update": start, "top1": 0.5})
        observer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(10, 1.0), (20, 20.0), (30, 30.0)]
    assert "eval/top1" in events.Tags()["scalars"]


def test_closing_what_never_started_is_no_error(tmp_path: Path) -> None:
    TensorBoardObserver(tmp_path).close()
