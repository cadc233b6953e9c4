"""Fixtures that several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def digits_run(tmp_path: Path) -> Path:
    """A run folder of the digits recipe: one checkpoint of an untrained model, EMA weights of another seed."""
    import torch

    from vitscale.checkpoint import TrainState, mark_best, write_checkpoint
    from vitscale.config.load import dump_config, load_config
    from vitscale.data.sources import open_splits
    from vitscale.distributed import World
    from vitscale.models.build import build_model

    class Engine:
        def save(self, folder: Path) -> None:
            (folder / "state").write_text("nothing")

        def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
            return build_model(config.model, 10, seed=1 if ema else 0).state_dict()

    changes = ["optim.ema_decay=0.9", "model.drop_path=0.1", "model.dropout=0.1", "model.kwargs={init_values: 0.5}"]
    config = load_config("digits", changes)
    splits = open_splits(config.data, img_size=8, in_chans=1)
    identity = {"classes": splits.classes, "mean": splits.mean, "std": splits.std}
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config))
    world = World(0, 1, 0, torch.device("cpu"))
    write_checkpoint(run, Engine(), TrainState(7, 7, 224, identity), world, ema=True)  # type: ignore[arg-type]
    mark_best(run, 7, 0.1)
    return run
