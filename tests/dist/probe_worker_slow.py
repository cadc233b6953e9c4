"""One rank of a forecast that is held against the truth: `python -m probe_worker_slow FOLDER`.

The model has a real ViT's parameters in several DDP buckets, but its device is made up: each layer of a block sleeps in
forward and in backward for each image and computes nothing, so that how busy this machine is matters little, and
backward hides communication as a real one does. First the probe, then real updates at each (micro_batch_size,
grad_accum_steps) of the payload, and around the break-even batch that the forecast names. Out (rank 0): profile,
predictions and measured times.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import vitscale.assembly
from vitscale.assembly import assemble, open_data
from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.distributed import World, joined
from vitscale.engine.native import NativeEngine
from vitscale.estimate.network import Forecast
from vitscale.estimate.profile import forecast_of
from vitscale.launch.child import run_rank
from vitscale.models.build import build_model
from vitscale.results.files import write_json
from vitscale.study.probe_worker import probe

MODEL = {"name": "vit_small_patch16_224", "depth": 5, "img_size": 16, "num_classes": 10}  # 36 MB of gradients
BACKWARD = 2.0  # times as long as forward


class _Slow(torch.autograd.Function):
    """A layer that is nothing but time, in both directions; its parameters get gradients of zero."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, seconds: float, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.seconds, ctx.shapes = seconds * len(tokens), [parameter.shape for parameter in parameters]
        time.sleep(ctx.seconds)
        return tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        time.sleep(BACKWARD * ctx.seconds)
        return grads[0], None, *(torch.zeros(()).expand(shape) for shape in ctx.shapes)


def slow_down(seconds: float) -> None:
    """From here on the blocks of models sleep so long per image, and compute nothing."""

    def slowed(*args: Any, **kwargs: Any) -> nn.Module:
        model = build_model(*args, **kwargs)
        for block in model.blocks:  # type: ignore[union-attr]
            block.forward = partial(_sleep, seconds, _layers(block))
        return model

    vitscale.assembly.build_model = slowed


Layers = tuple[tuple[float, tuple[nn.Parameter, ...]], ...]


def _layers(block: Any) -> Layers:
    """A block's linear layers in the order of forward, each with its share of the block's products, and the norms."""
    groups = (
        (3 / 12, (block.norm1, block.attn.qkv)),
        (1 / 12, (block.attn.proj,)),
        (4 / 12, (block.norm2, block.mlp.fc1)),
        (4 / 12, (block.mlp.fc2,)),
    )
    return tuple((share, tuple(p for module in modules for p in module.parameters())) for share, modules in groups)


def _sleep(seconds: float, layers: Layers, tokens: torch.Tensor, **_: object) -> torch.Tensor:
    for share, parameters in layers:
        tokens = _Slow.apply(tokens, share * seconds, *parameters)
    return tokens


def config_of(micro: int, accum: int) -> RunConfig:
    train = {"micro_batch_size": micro, "grad_accum_steps": accum, "max_updates": 1000}
    data = {"source": "synthetic", "synthetic_size": 2 * micro * accum * 10}  # no update with fewer images at its end
    optim = {"name": "sgd", "lr": 1e-4, "clip_grad": None}
    return build_config({"model": MODEL, "data": data, "optim": optim, "train": train, "eval": {"every_epochs": None}})


class Reduction:
    """Whether DDP reduces at the last micro-step of an update: without, an update is this rank's own work."""

    def __init__(self) -> None:
        self.on = True
        original = NativeEngine._reducing

        def reducing(engine: NativeEngine, last: bool) -> AbstractContextManager[object]:
            return original(engine, last and self.on)

        NativeEngine._reducing = reducing  # type: ignore[method-assign]


def measured(micro: int, accum: int, world: World, reduction: Reduction, pairs: int) -> dict[str, float]:
    """Seconds of a whole update (loader, micro-steps, reduction, optimizer) and of the part that communication costs.

    Updates with and without the reduction take turns, so that what else this machine does hits both alike; the slowest
    rank counts.
    """
    config = config_of(micro, accum)
    parts = assemble(config, decisions_of(config), world, open_data(config))
    times: dict[bool, list[float]] = {True: [], False: []}
    batches = parts.loader.iterate(0, 1 + 2 * pairs)
    for turn in range(1 + 2 * pairs):  # the first one sets up buckets
        reduction.on = turn % 2 == 0
        world.barrier()
        begin = time.monotonic()
        parts.engine.train_batch(next(batches))
        times[reduction.on].append(max(world.gather(time.monotonic() - begin)))
    step, alone = median(times[True][1:]), median(times[False])
    return {"measured": step, "measured_exposed": max(0.0, step - alone)}


def main() -> int:
    folder = Path(sys.argv[1])
    payload = json.loads((folder / "payload.json").read_text())
    slow_down(payload["seconds_per_image"])
    with joined("cpu", group=False) as world:
        config = config_of(payload["micro"], 1)
        profile = probe(config, "slow", world, loader=True)
        forecast = forecast_of(profile, config, decisions_of(config))
        assert forecast is not None
        reduction, pairs = Reduction(), payload["pairs"]
        rows = [row(forecast, micro, accum, world, reduction, pairs) for micro, accum in payload["cases"]]
        batch = forecast.batch_for()
        assert batch is not None
        sizes = ((max(1, batch // 4), pairs), (2 * batch, 1))  # an update of the latter takes a while
        around = [row(forecast, size, 1, world, reduction, count) for size, count in sizes]
        if world.main:
            result = {"profile": profile.model_dump(mode="json"), "rows": rows, "batch": batch, "around": around}
            write_json(folder / "result.json", result)
    return 0


def decisions_of(config: RunConfig) -> Decisions:
    return decide(config, world_size=2, device_type="cpu")


def row(
    forecast: Forecast, micro: int, accum: int, world: World, reduction: Reduction, pairs: int
) -> dict[str, float]:
    told = forecast.predict(micro, accum)
    predicted = {"predicted": told.step_s, "predicted_exposed": told.exposed_s}
    return {"micro": micro, "accum": accum, **predicted, **measured(micro, accum, world, reduction, pairs)}


if __name__ == "__main__":
    sys.exit(run_rank(main))
