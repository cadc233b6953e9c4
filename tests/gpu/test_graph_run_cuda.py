"""A whole run under a CUDA graph (evaluation, checkpoints, short last updates, resuming) against a plain one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
COMMON = ("eval.every_updates=20", "checkpoint.every_updates=30", "train.epochs=null", "data.flip=true")


def train(out: Path, updates: int, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "vitscale", "train", "digits", "--out", str(out), f"train.max_updates={updates}"]
    done = subprocess.run([*command, *COMMON, *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [loss for row in rows if row["kind"] == "train" for loss in row["losses"]]


def top1(rows: list[dict[str, Any]]) -> list[float]:
    return [row["top1"] for row in rows if row["kind"] == "eval"]


def test_the_speedruns_parts_go_into_a_graph(tmp_path: Path) -> None:
    """Convolutional stem, drop path, RandAugment, erasing and mixing, with AdamW and with Muon, compiled, in bf16."""
    ways = ("model.stem=conv", "model.patch_size=4", "model.drop_path=0.1", "precision.compute=bf16")
    ways += (
        "data.randaugment=2",
        "data.random_erasing=0.25",
        "data.mixup=0.8",
        "data.cutmix=1.0",
        "data.drop_last=true",
    )
    ways += ("performance.compile=true", "optim.clip_grad=1.0", "optim.ema_decay=0.9", "eval.use_ema=true")
    for optimizer in ("adamw", "muon"):
        name = f"optim.name={optimizer}"
        plain = train(tmp_path / f"{optimizer}-plain", 60, *ways, name, "performance.cuda_graph=false")
        graphed = train(tmp_path / f"{optimizer}-graphed", 60, *ways, name, "performance.cuda_graph=true")
        assert losses(graphed) == pytest.approx(losses(plain), rel=3e-2)  # bf16, and Muon's products in bf16 as well
        assert losses(graphed)[:5] == pytest.approx(losses(plain)[:5], rel=5e-3)
        assert top1(graphed)[-1] == pytest.approx(top1(plain)[-1], abs=0.1)
        assert losses(graphed) != losses(graphed)[:1] * 60


@pytest.mark.parametrize("engine", ["single", "ddp", "fsdp2"])
def test_a_run_under_a_graph_learns_the_same_and_resumes(tmp_path: Path, engine: str) -> None:
    """90 updates pass the end of an epoch twice, where an update is shorter and cannot be replayed."""
    ways = (f"parallel.engine={engine}", "optim.clip_grad=1.0", "optim.ema_decay=0.9")
    plain = train(tmp_path / "plain", 90, *ways, "performance.cuda_graph=false")
    graphed = train(tmp_path / "graphed", 90, *ways, "performance.cuda_graph=true")
    train(tmp_path / "resumed", 60, *ways, "performance.cuda_graph=true")
    resumed = train(tmp_path / "resumed", 90, *ways, "performance.cuda_graph=true")
    assert len(losses(plain)) == 90
    assert losses(graphed) == pytest.approx(losses(plain), rel=2e-3)
    assert losses(resumed) == pytest.approx(losses(graphed), rel=2e-3)
    assert top1(graphed) == pytest.approx(top1(plain), abs=0.02)
    assert losses(graphed)[-1] < 0.8 * losses(graphed)[0]  # weights are updated at all
