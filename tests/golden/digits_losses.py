"""Losses of the first 10 updates of the digits recipe, seed 0, one process, CPU.

They say whether a change has changed training. If it was meant to, write them anew and say why in the commit:
    .venv/bin/python tests/golden/digits_losses.py > tests/golden/digits.json
"""

from __future__ import annotations

import json

import torch

from vitscale.assembly import assemble, open_data
from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.distributed import World

UPDATES = 10


def digits_losses(*overrides: str) -> list[float]:
    """The losses, each the mean over an update."""
    config = load_config("digits", ["train.seed=0", *overrides])
    world = World(0, 1, 0, torch.device("cpu"))
    parts = assemble(config, decide(config, world_size=1, device_type="cpu"), world, open_data(config))
    return [parts.engine.train_batch(batch).loss.item() for batch in parts.loader.iterate(0, UPDATES)]


if __name__ == "__main__":
    print(json.dumps({"recipe": "digits", "torch": torch.__version__, "losses": digits_losses()}, indent=1))
