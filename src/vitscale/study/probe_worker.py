"""One rank of a probe: `python -m vitscale.study.probe_worker FOLDER`.

In: FOLDER/payload.json with a config, the kind of device and whether the loader is to be measured. Out (rank 0):
result.json with a Profile. `vitscale env --probe` inside an outer launcher calls `probe` in its own process.
"""

from __future__ import annotations

import datetime
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vitscale.assembly import assemble, open_data
from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.data.loader import TrainLoader
from vitscale.distributed import World, joined
from vitscale.errors import EXIT_OK
from vitscale.estimate.profile import Profile, RankProfile, Spread, StepTimes
from vitscale.estimate.vit import check_resolution, expected_classes
from vitscale.launch.child import run_rank
from vitscale.measure.probe import (
    PhaseTimes,
    all_reduce_times,
    copy_rate,
    host_to_device_rate,
    loader_rate,
    matrix_rates,
    step_times,
)
from vitscale.study.case import load_payload, save_result

STEP_S = 6.0  # for the model's step, once it has been built


class _Watch:
    """Seconds of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """A part has ended."""
        now = time.monotonic()
        self.seconds[name] = round(now - self._last, 2)
        self._last = now


def probe(config: RunConfig, name: str, world: World, *, loader: bool) -> Profile:
    """Measure devices, network, step and loader. Collective; every rank gets the whole profile."""
    decisions = decide(config, world_size=world.world_size, device_type=world.device.type)
    watch = _Watch()
    device = world.device
    rates = matrix_rates(device), copy_rate(device), host_to_device_rate(device)
    watch.lap("devices")
    points = all_reduce_times(world)
    watch.lap("network")
    steps = _steps(config, decisions, world)
    watch.lap("step")
    speed, beside = _loader(config, decisions, world) if loader else (None, False)
    watch.lap("loader")
    own = RankProfile(
        host=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        matrix_flops=rates[0],
        copy_bytes_per_s=rates[1],
        host_to_device_bytes_per_s=rates[2],
        steps=steps,
        loader_images_per_s=speed,
    )
    return Profile(
        made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        backend=dist.get_backend() if world.grouped else "none",
        config=name,
        step="compiled" if _alone(config, decisions, device)[1].fast.compile else "eager",
        ranks=tuple(world.gather(own)),
        all_reduce=tuple(points),
        loader_beside=beside,
        seconds=watch.seconds,
    )


def _steps(config: RunConfig, decisions: Decisions, world: World) -> tuple[StepTimes, ...]:
    """The model's step as a single process makes it, on every rank at the same time."""
    alone, decided = _alone(config, decisions, world.device)
    solo = replace(world, rank=0, world_size=1, control=None)
    recorder = PhaseTimes(world.device)
    parts = assemble(alone, decided, solo, open_data(alone), recorder=recorder)
    batch = next(parts.loader.iterate(0, 1))
    most = decisions.batch.micro_batch_size
    sizes = (max(1, most // 4), most) if most > 1 else (1,)
    return step_times(parts.engine, recorder, batch.micro_batches[0], sizes, world, budget_s=STEP_S)


def _alone(config: RunConfig, decisions: Decisions, device: torch.device) -> tuple[RunConfig, Decisions]:
    """The config of one process over random images, in pieces that can be timed: no CUDA graph; compiled if asked."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    micro = decisions.batch.micro_batch_size
    tree["data"] = {"source": "synthetic", "synthetic_size": max(64, micro)}
    tree["model"] |= {"num_classes": expected_classes(config.model, config.data) or 1000, "pretrained": None}
    batch = {"micro_batch_size": micro, "grad_accum_steps": 1, "global_batch_size": None}
    tree["train"] |= {"epochs": None, "max_updates": 10**6, "class_weights": "none", **batch}
    tree["parallel"] = {"engine": "single"}
    tree["deepspeed"] = {}
    tree["performance"] |= {"cuda_graph": False, "compile": config.performance.compile is True}
    if config.precision.params == "fp16":  # DeepSpeed's alone
        tree["precision"] |= {"params": None, "reduce": None}
    made = build_config(tree)
    return made, decide(made, world_size=1, device_type=device.type)


def _loader(config: RunConfig, decisions: Decisions, world: World) -> tuple[Spread | None, bool]:
    """This rank's loader as the run has it, and whether it reads ahead of the device."""
    splits = open_data(config)
    loader = TrainLoader(
        splits.train,
        config,
        decisions.batch,
        img_size=check_resolution(config.model)[0],
        mean=splits.mean,
        std=splits.std,
        num_classes=config.model.num_classes or len(splits.classes),
        rank=world.rank,
        world_size=world.world_size,
        device=world.device,
        pad_to_micro_batch=decisions.static_shapes,
    )
    return loader_rate(loader), loader.reads_ahead


def probe_from(folder: Path) -> int:
    """Probe what the payload says, and leave the profile."""
    payload = load_payload(folder)
    with joined(payload["device"], group=False) as world:
        profile = probe(build_config(payload["config"]), payload["name"], world, loader=payload["loader"])
        if world.main:
            save_result(folder, profile.model_dump(mode="json"))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(run_rank(lambda: probe_from(Path(sys.argv[1]))))
