"""From a RunConfig to what trains: data, model, loader, plan and engine, in the one order in which they depend.

In: a config, what `decide` made of it, this rank's World. Out: Parts, for run, verify and the study's worker. Nothing
here trains, reads a checkpoint or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.data.images import Splits
from vitscale.data.loader import EvalLoader, TrainLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import World, seed_everything
from vitscale.engine.base import Engine
from vitscale.engine.build import build_engine
from vitscale.estimate.vit import check_resolution
from vitscale.losses import build_loss
from vitscale.models.build import build_model, image_size
from vitscale.models.drop_path import num_draws
from vitscale.phases import NULL, Recorder
from vitscale.trainer import Plan, plan_run


@dataclass(frozen=True)
class Parts:
    """What trains. fitted: sentences about how pretrained weights were made to fit."""

    engine: Engine
    loader: TrainLoader
    plan: Plan
    splits: Splits
    img_size: int
    num_classes: int
    fitted: tuple[str, ...]


def open_data(config: RunConfig) -> Splits:
    """The data set at the model's resolution; raises DataError and ModelError."""
    return open_splits(
        config.data,
        img_size=check_resolution(config.model)[0],
        in_chans=config.model.in_chans,
        num_classes=config.model.num_classes,
        seed=config.train.seed,
    )


def assemble(
    config: RunConfig,
    decisions: Decisions,
    world: World,
    splits: Splits,
    *,
    recorder: Recorder = NULL,
    resume_from: Path | None = None,
    double: bool = False,
) -> Parts:
    """Build model, loader and engine. Collective in sharded engines.

    resume_from: the engine's folder of the checkpoint that will be loaded. double: fp64 weights, for the proof of
    equality.
    """
    seed_everything(config.train.seed)
    fitted: list[str] = []
    num_classes = config.model.num_classes or len(splits.classes)
    model = build_model(config.model, num_classes, config.train.seed, tell=fitted.append)
    if double:
        model.double()
    img_size = image_size(model)
    loader = TrainLoader(
        splits.train,
        config,
        decisions.batch,
        img_size=img_size,
        mean=splits.mean,
        std=splits.std,
        num_classes=num_classes,
        num_draws=num_draws(model),
        rank=world.rank,
        world_size=world.world_size,
        device=world.device,
        pad_to_micro_batch=decisions.static_shapes,
        recorder=recorder,
    )
    plan = plan_run(config, loader.updates_per_epoch)
    loss = build_loss(config.train)
    total = plan.total_updates
    engine = build_engine(model, loss, config, decisions, world, total, recorder, resume_from=resume_from)
    return Parts(engine, loader, plan, splits, img_size, num_classes, tuple(fitted))


def eval_loader(parts: Parts, config: RunConfig, decisions: Decisions, world: World) -> EvalLoader:
    """The validation split of this rank."""
    return EvalLoader(
        parts.splits.val,
        config,
        micro_batch_size=config.eval.micro_batch_size or decisions.batch.micro_batch_size,
        img_size=parts.img_size,
        mean=parts.splits.mean,
        std=parts.splits.std,
        rank=world.rank,
        world_size=world.world_size,
        device=world.device,
        pad_to_micro_batch=decisions.static_shapes,
    )
