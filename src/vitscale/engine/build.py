"""Chooses and builds the engine of a run. The only place that knows all engines."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.distributed import World
from vitscale.engine.base import Engine, LossFn
from vitscale.phases import NULL, Recorder


def build_engine(
    model: nn.Module,
    loss_fn: LossFn,
    config: RunConfig,
    decisions: Decisions,
    world: World,
    total_updates: int,
    recorder: Recorder = NULL,
    resume_from: Path | None = None,
) -> Engine:
    """The engine that `decisions` names, over a plain fp32 model on the CPU. Collective.

    resume_from: the folder that `engine.load` will be called with; DeepSpeed must know it from the start.

    One process builds ONE engine: DeepSpeed patches global functions.
    """
    if decisions.engine == "deepspeed":
        from vitscale.engine.deepspeed.engine import DeepSpeedEngine

        return DeepSpeedEngine(model, loss_fn, config, decisions, world, total_updates, recorder, resume_from)
    from vitscale.engine.native import NativeEngine

    return NativeEngine(model, loss_fn, config, decisions, world, total_updates, recorder)
