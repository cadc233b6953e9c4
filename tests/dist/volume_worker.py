"""Counts what one rank sends in real updates: `python -m volume_worker FOLDER`.

In: payload.json with overrides of the digits recipe. Out (rank 0): bytes sent per update by the shapes of the
collectives that torch's profiler sees, and the closed form.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.distributed import environment_ranks
from vitscale.estimate.communication import communication_of
from vitscale.launch.child import run_rank
from vitscale.phases import NullRecorder, Phase
from vitscale.run import train
from vitscale.study.case import load_payload, save_result

SKIPPED, COUNTED = 2, 2  # updates; DDP and ZeRO-3 find their order in the first ones


class Counter(NullRecorder):
    """Profiles updates SKIPPED .. SKIPPED + COUNTED."""

    def __init__(self) -> None:
        self.updates = 0
        self.profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        return torch.profiler.record_function(f"phase:{name}")

    def update(self, images: int) -> None:
        self.updates += 1
        if self.updates == SKIPPED:
            self.profile.start()
        if self.updates == SKIPPED + COUNTED:
            self.profile.stop()

    def finish(self, gather: Callable[[Any], list[Any]]) -> None:
        return


def bytes_sent(path: Path, world_size: int) -> float:
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    phases = [e for e in events if e["name"] in ("phase:forward", "phase:backward", "phase:optimizer")]
    total = 0.0
    for event in events:
        inside = any(p["ts"] <= event["ts"] < p["ts"] + p["dur"] for p in phases)
        if inside and event["name"] in KINDS:
            which, factor = KINDS[event["name"]]
            total += 4 * factor * elements(event["args"]["Input Dims"][which])
    return total * (world_size - 1) / world_size / COUNTED


KINDS = {"c10d::allreduce_": (0, 2), "c10d::_allgather_base_": (0, 1), "c10d::_reduce_scatter_base_": (1, 1)}
"""Which argument is the whole tensor, and how often a ring sends it."""


def elements(dims: list[Any]) -> int:
    """A scalar (norms, flags) has no dimensions and is not the model's own traffic."""
    shapes = dims if dims and isinstance(dims[0], list) else [dims]
    return sum(math.prod(shape) for shape in shapes if shape)


def main() -> int:
    folder = Path(sys.argv[1])
    rank, world_size, _ = environment_ranks()
    config = load_config("digits", load_payload(folder)["changes"])
    counter = Counter()
    train(config, folder / "run", device="cpu", recorder=counter, observers=[], conclude=False)
    if rank == 0:
        counter.profile.export_chrome_trace(str(folder / "trace.json"))
        closed = communication_of(config, decide(config, world_size=world_size))
        assert closed is not None
        save_result(
            folder, {"measured": bytes_sent(folder / "trace.json", world_size), "closed": closed.bytes_per_update}
        )
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(main))
