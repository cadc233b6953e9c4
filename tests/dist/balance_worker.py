"""Sessions of runs on devices of unequal speed, one after the other: `python -m balance_worker FOLDER` as a rank.

In: payload.json with, for each session, a config, a run folder and how long each rank's device takes for an image. A
device is a sleep in a leaf of the model, in proportion to the images, twice as long in backward: so a test is about our
arithmetic, and not about the cores that the ranks share. Out (rank 0): every row and event, and what each rank saw.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitscale import assembly
from vitscale import run as run_module
from vitscale.config.load import build_config
from vitscale.distributed import World, joined
from vitscale.launch.child import run_rank
from vitscale.phases import NullRecorder
from vitscale.study.case import load_payload, save_result


class Device(NullRecorder):
    """This rank's device: seconds per image, forward and backward together, by the update from which on they hold."""

    def __init__(self, speeds: list[tuple[int, list[float]]], rank: int) -> None:
        self.speeds = [(update, by_rank[rank]) for update, by_rank in speeds]
        self.updates = 0
        self.images: list[int] = []  # of each forward, training and evaluation

    def update(self, images: int) -> None:
        self.updates += 1

    @property
    def seconds(self) -> float:
        return next(seconds for update, seconds in reversed(self.speeds) if self.updates >= update)

    def slow_down(self, model: nn.Module) -> nn.Module:
        leaf: Any = model.patch_embed.proj  # type: ignore[union-attr]
        forward = leaf.forward

        def slow(x: torch.Tensor) -> torch.Tensor:
            self.images.append(len(x))
            return _Sleep.apply(forward(x), self.seconds * len(x) / 3)

        leaf.forward = slow
        return model


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Rows:
    """An observer that keeps everything, with the time at which each row came."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def start(self, info: dict[str, Any]) -> None:
        self.rows.append({"kind": "start", **info})

    def metrics(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    event = metrics

    def close(self) -> None: ...


def session(payload: dict[str, Any], world: World) -> dict[str, Any]:
    device = Device([(update, by_rank) for update, by_rank in payload["speeds"]], world.rank)
    build = assembly.build_model
    assembly.build_model = lambda *a, **k: device.slow_down(build(*a, **k))  # type: ignore[assignment]
    rows = Rows()
    try:
        run_module.train(
            build_config(payload["config"]),
            Path(payload["run"]),
            device="cpu",
            recorder=device,
            observers=[rows],
            conclude=payload.get("conclude", False),
        )
    finally:
        assembly.build_model = build
    return {"rows": rows.rows, "images": world.gather(device.images)}


def main(folder: Path) -> int:
    results = {}
    with joined("cpu", group=True) as world:
        run_module.joined = lambda kind, group: nullcontext(world)  # type: ignore[assignment]
        for name, payload in load_payload(folder)["sessions"].items():
            results[name] = session(payload, world)
        if world.main:
            save_result(folder, results)
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(Path(sys.argv[1]))))
