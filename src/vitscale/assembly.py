"""From a RunConfig to what trains: data, model, loader, plan and engine, in the one order in which they depend.

In: a config, what `decide` made of it, this rank's World. Out: Parts, for run, verify and the study's worker. Nothing
here trains, reads a checkpoint or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.data.images import Splits
from vitscale.data.loader import EvalLoader, TrainLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import World, seed_everything
from vitscale.engine.base import Engine, LossFn
from vitscale.engine.build import build_engine
from vitscale.errors import DeviceError
from vitscale.estimate.pace import OwnPace, propose
from vitscale.estimate.vit import check_resolution
from vitscale.losses import build_loss
from vitscale.measure.own_pace import measure_own_pace
from vitscale.models.build import build_model, image_size
from vitscale.models.drop_path import num_draws
from vitscale.pacing import Balance, balance_text
from vitscale.phases import NULL, Recorder
from vitscale.trainer import Plan, plan_run


@dataclass(frozen=True)
class Parts:
    """What trains. decisions: with the shares that parallel.balance=auto has measured. fitted: sentences about how
    pretrained weights were made to fit. balance: None unless shares may follow measured speed."""

    decisions: Decisions
    engine: Engine
    loader: TrainLoader
    plan: Plan
    splits: Splits
    img_size: int
    num_classes: int
    fitted: tuple[str, ...]
    balance: Balance | None
    notes: tuple[str, ...]


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
    loss = build_loss(config.train)
    decisions, balance, notes = _balanced(model, loss, config, decisions, world, img_size)
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
        shares=decisions.shares,
    )
    plan = plan_run(config, loader.updates_per_epoch)
    total = plan.total_updates
    engine = build_engine(model, loss, config, decisions, world, total, recorder, resume_from=resume_from)
    return Parts(decisions, engine, loader, plan, splits, img_size, num_classes, tuple(fitted), balance, notes)


def _balanced(
    model: nn.Module, loss: LossFn, config: RunConfig, decisions: Decisions, world: World, img_size: int
) -> tuple[Decisions, Balance | None, tuple[str, ...]]:
    """With parallel.balance=auto: measure every rank and decide on shares, the same on all. Collective."""
    if config.parallel.balance != "auto":
        unequal = len(set(decisions.shares)) > 1
        return decisions, None, (balance_text(decisions.shares),) if unequal else ()
    if world.world_size == 1:
        return decisions, None, ()
    paces: list[OwnPace] = []
    world.barrier()  # ranks of one host share its cores while they train, and so while they are measured
    for rank, found in enumerate(world.gather(_own_pace(model, loss, config, decisions, world, img_size))):
        if isinstance(found, str):
            raise DeviceError(f"parallel.balance=auto cannot measure rank {rank}: {found}")
        paces.append(found)
    better = propose([pace.whole for pace in paces], decisions.shares, decisions.unit)
    shares = better.shares if better else decisions.shares
    why = (
        "performance.compile or performance.cuda_graph keeps every shape as it is" if decisions.static_shapes else None
    )
    return replace(decisions, shares=shares), Balance(tuple(paces), why), (balance_text(shares, paces),)


def _own_pace(
    model: nn.Module, loss: LossFn, config: RunConfig, decisions: Decisions, world: World, img_size: int
) -> OwnPace | str:
    """This rank's, or why there is none: the other ranks wait to hear of it."""
    try:
        return measure_own_pace(model, loss, config, decisions, world.device, img_size)
    except DeviceError as error:
        return str(error)


def eval_loader(parts: Parts, config: RunConfig, world: World) -> EvalLoader:
    """The validation split of this rank, shared as the training set is."""
    decisions = parts.decisions
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
        shares=decisions.shares,
    )
