"""Whole runs of engine single on real digits: stopped and resumed they end where an uninterrupted one ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscale.checkpoint import checkpoint_name, find_checkpoint, mark_best, read_state, read_weights
from vitscale.config.load import load_config
from vitscale.errors import CheckpointError, Stopped
from vitscale.run import train

SMALL = ["model.depth=1", "model.drop_path=0.1", "model.dropout=0.1", "data.train_limit=150", "data.val_limit=40",
         "optim.ema_decay=0.9", "train.epochs=2", "log.every_updates=1", "eval.every_epochs=1"]  # fmt: skip


class SignalAt:
    """An observer that asks for a stop at an update's row."""

    def __init__(self, update: int | None) -> None:
        self.update = update
        self.losses: list[float] = []

    def start(self, info: dict[str, Any]) -> None: ...

    def metrics(self, row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            self.losses += row["losses"]
            if row["update"] == self.update:
                os.kill(os.getpid(), signal.SIGTERM)

    def event(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def session(out: Path, *overrides: str, stop_at: int | None = None) -> tuple[Any, list[float]]:
    observer = SignalAt(stop_at)
    result = train(load_config("digits", [*SMALL, *overrides]), out, device="cpu", observers=[observer])
    return result, observer.losses


def test_stopped_and_resumed_ends_where_an_uninterrupted_run_ends(tmp_path: Path) -> None:
    whole, losses = session(tmp_path / "whole")
    with pytest.raises(Stopped):
        session(tmp_path / "stopped", stop_at=7)
    assert read_state(find_checkpoint(tmp_path / "stopped")).update == 7
    resumed, rest = session(tmp_path / "stopped")
    assert whole.updates == resumed.updates == len(losses) == 10
    assert rest == losses[7:]
    assert (resumed.top1, resumed.best_top1, resumed.images_seen) == (whole.top1, whole.best_top1, 300)
    for ema in (False, True):
        one, two = (read_weights(find_checkpoint(tmp_path / name), ema=ema) for name in ("whole", "stopped"))
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_resumed_run_measures_itself_against_the_marked_best(tmp_path: Path) -> None:
    session(tmp_path, "train.epochs=1")
    mark_best(tmp_path, 5, 0.999)  # as an evaluation after the checkpoint of its update would
    result, _ = session(tmp_path)
    assert result.best_top1 == 0.999
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(5)
    assert json.loads((tmp_path / "result.json").read_text())["best_top1"] == 0.999


def test_another_models_checkpoint_is_refused_by_the_key_that_differs(tmp_path: Path) -> None:
    session(tmp_path, "train.epochs=1")
    with pytest.raises(CheckpointError, match=r"is of a run with model.depth=1, and this command has model.depth=2"):
        session(tmp_path, "model.depth=2")
