"""One job of the proof, as one rank: `python -m vitscale.verify.worker FOLDER`.

In: FOLDER/payload.json. Out (rank 0): result.json with losses and gradient norms, and per variant a safetensors file
with the first update's gradients (as the optimizer's state holds them, so clipping and averaging are included) and
the final weights, gathered by timm's names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.data.loader import TrainLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import World, joined, seed_everything
from vitscale.engine.base import Engine
from vitscale.engine.build import build_engine
from vitscale.errors import EXIT_OK
from vitscale.estimate.vit import check_resolution
from vitscale.launch.child import run_rank
from vitscale.losses import build_loss
from vitscale.models.build import build_model, image_size
from vitscale.models.drop_path import num_draws
from vitscale.study.case import load_payload, save_result
from vitscale.trainer import plan_run

# The state that is the gradient after the first update: momentum_buffer = g, exp_avg = (1 - beta1) g.
GRADIENT_STATE = {"sgd": "momentum_buffer", "adamw": "exp_avg"}


def run_job(folder: Path) -> int:
    """Run every variant of the payload in this process group."""
    payload = load_payload(folder)
    device = payload["device"]
    figures = {}
    with joined(device, group=True) as world:
        for run in payload["runs"]:
            figures[run["name"]] = _run_variant(run, world, folder)
        if world.main:
            save_result(folder, {"variants": figures})
    return EXIT_OK


def _run_variant(run: dict[str, Any], world: World, folder: Path) -> dict[str, Any]:
    config = build_config(run["config"])
    engine, loader, total = _build(config, world, double=run["variant"]["double"])
    losses: list[float] = []
    norms: list[float | None] = []
    tensors: dict[str, torch.Tensor] = {}
    for batch in loader.iterate(0, total):
        output = engine.train_batch(batch)
        losses.append(world.sum(output.loss.double()).item())
        norms.append(None if output.grad_norm is None else float(output.grad_norm))
        if len(losses) == 1:
            tensors = _first_gradients(engine, config)
    tensors |= {f"weight/{name}": tensor for name, tensor in engine.gathered_parameters().items()}
    if world.main:
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{run['name']}.safetensors")
    engine.close()
    return {"losses": losses, "grad_norms": norms}


def _build(config: RunConfig, world: World, *, double: bool) -> tuple[Engine, TrainLoader, int]:
    decisions = decide(config, world_size=world.world_size, device_type=world.device.type)
    seed_everything(config.train.seed)
    splits = open_splits(
        config.data,
        img_size=check_resolution(config.model)[0],
        in_chans=config.model.in_chans,
        num_classes=config.model.num_classes,
        seed=config.train.seed,
    )
    num_classes = config.model.num_classes or len(splits.classes)
    model = build_model(config.model, num_classes, config.train.seed)
    if double:
        model.double()
    loader = TrainLoader(
        splits.train,
        config,
        decisions.batch,
        img_size=image_size(model),
        mean=splits.mean,
        std=splits.std,
        num_classes=num_classes,
        num_draws=num_draws(model),
        rank=world.rank,
        world_size=world.world_size,
        device=world.device,
        pad_to_micro_batch=config.performance.compile,
    )
    total = plan_run(config, loader.updates_per_epoch).total_updates
    return build_engine(model, build_loss(config.train), config, decisions, world, total), loader, total


def _first_gradients(engine: Engine, config: RunConfig) -> dict[str, torch.Tensor]:
    key = GRADIENT_STATE[config.optim.name]
    return {f"gradient/{name}": state[key] for name, state in engine.gathered_optimizer_state().items()}


if __name__ == "__main__":
    sys.exit(run_rank(lambda: run_job(Path(sys.argv[1]))))
