"""Losses of the first 10 updates of the digits recipe, seed 0, one process, CPU.

They say whether a change has changed training. If it was meant to, write them anew and say why in the commit:
    .venv/bin/python tests/golden/digits_losses.py > tests/golden/digits.json
"""

from __future__ import annotations

import json

import torch

from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.data.loader import TrainLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import World
from vitscale.engine.build import build_engine
from vitscale.losses import build_loss
from vitscale.models.build import build_model, image_size

UPDATES = 10


def digits_losses(*overrides: str) -> list[float]:
    """The losses, each the mean over an update."""
    config = load_config("digits", ["train.seed=0", *overrides])
    splits = open_splits(config.data, img_size=8, in_chans=1)
    model = build_model(config.model, len(splits.classes), config.train.seed)
    decisions = decide(config, world_size=1, device_type="cpu")
    loader = TrainLoader(
        splits.train,
        config,
        decisions.batch,
        img_size=image_size(model),
        mean=splits.mean,
        std=splits.std,
        num_classes=len(splits.classes),
    )
    assert config.train.epochs is not None
    total = config.train.epochs * loader.updates_per_epoch
    world = World(0, 1, 0, torch.device("cpu"))
    engine = build_engine(model, build_loss(config.train), config, decisions, world, total)
    return [engine.train_batch(batch).loss.item() for batch in loader.iterate(0, UPDATES)]


if __name__ == "__main__":
    print(json.dumps({"recipe": "digits", "torch": torch.__version__, "losses": digits_losses()}, indent=1))
