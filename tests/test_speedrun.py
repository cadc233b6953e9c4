"""The recipe cifar10-speedrun: what its speed rests on, and a copy of it that a CPU trains in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.data.loader import TrainLoader
from vitscale.data.sources import open_splits
from vitscale.estimate.vit import forward_flops, num_parameters, shape_of, stem_convs
from vitscale.run import train


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    """Images of four classes that a model can tell apart by their colour, in CIFAR-10's format."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 400), ("test", 80)):
        labels = np.arange(count) % 4
        shades = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [120, 120, 120]])[labels]
        noise = rng.integers(-40, 40, (count, 32, 32, 3))
        arrays |= {f"{split}_images": (shades[:, None, None] + noise).astype(np.uint8), f"{split}_labels": labels}
    np.savez(tmp_path / "four.npz", **arrays)
    return tmp_path / "four.npz"


def speedrun(npz: Path, *changes: str) -> RunConfig:
    return load_config("cifar10-speedrun", ["data.source=npz", f"data.root={npz}", *changes])


def test_nothing_stands_in_the_way_of_one_graph_per_update(npz: Path) -> None:
    """Whole updates replay only where shapes never change, and where nothing waits for the host."""
    config = speedrun(npz, "performance.cuda_graph=true", "performance.compile=true", "train.global_batch_size=128")
    decisions = decide(config, world_size=1, device_type="cuda")
    assert decisions.batch == (128, 1, 128)
    assert tuple(decisions.precision) == ("bf16", "bf16", "bf16")
    splits = open_splits(config.data, img_size=32, in_chans=3)
    size: dict[str, Any] = {"img_size": 32, "num_classes": 10, "num_draws": 3}
    loader = TrainLoader(splits.train, config, decisions.batch, mean=splits.mean, std=splits.std, **size)
    assert loader.augment_on == "device"
    assert loader._reader.transform is None  # no worker processes
    shapes = set()
    for update in loader.iterate(0, 5):
        (micro,) = update.micro_batches
        assert micro.draws is not None
        shapes.add(tuple((t.shape, t.dtype) for t in (micro.images, micro.targets, micro.weights, micro.draws)))
    assert len(shapes) == 1


def test_the_stem_is_small_and_all_mixing_is_attention(npz: Path) -> None:
    shape = shape_of(speedrun(npz).model, 10)
    assert (shape.num_tokens, num_parameters(shape)) == (64, 14_894_410)
    convolutions = sum(2 * conv.weights * conv.edge**2 for conv in stem_convs(shape))
    assert convolutions < 0.05 * (forward_flops(shape) or 0)


def test_a_small_copy_learns_and_says_when(npz: Path, tmp_path: Path) -> None:
    tiny = ("model.embed_dim=32", "model.depth=2", "model.num_heads=2", "model.num_classes=4", "precision.compute=fp32")
    quick = ("train.global_batch_size=32", "train.epochs=4", "optim.warmup_updates=10", "optim.ema_decay=0.9")
    easy = ("model.drop_path=0", "data.mixup=0", "data.randaugment=1")  # a flip of colours would change the class
    result = train(speedrun(npz, *tiny, *quick, *easy), tmp_path / "run", device="cpu", observers=None)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    assert [row["epoch"] for row in evaluations] == [2, 4]
    assert evaluations[-1]["top1"] > 0.9
    assert 0 < evaluations[0]["train_seconds"] < evaluations[1]["train_seconds"]
    assert result.train_seconds == pytest.approx(evaluations[1]["train_seconds"])
    assert [row["path"] for row in rows if row["kind"] == "checkpoint"] == [result.out + "/checkpoints/update-00000048"]
