"""Records of a simulated machine whose truth is known: each run has its own offset, each update noise around it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from vitscale.results.record import Identity, Learning, Measurement, Record

ENVIRONMENT = {
    "python": "3.11.9",
    "packages": {"vitscale": "0.1.0", "torch": "2.14.1"},
    "driver": "580.12",
    "devices": [{"name": "H200", "bf16": "native"}],
    "cpu": {"model": "EPYC", "usable_cores": 16, "memory_bytes": 1},
    "git": {"commit": "a"},
}


def record(
    axes: dict[str, Any] | None = None,
    *,
    repeat: int = 0,
    steps: list[float] | None = None,
    accuracy: float | None = None,
    split: Any = "val",
    identity: dict[str, Any] | None = None,
    measurement: dict[str, Any] | None = None,
    **more: Any,
) -> Record:
    """One record: axes name the case and are part of the identity where it knows them."""
    axes = {"world_size": 1} if axes is None else axes
    facts: dict[str, Any] = {
        "world_size": 1,
        "micro_batch_size": 16,
        "grad_accum_steps": 1,
        "lr": 1e-3,
        "warmup_updates": 0,
        **{key: value for key, value in axes.items() if key in Identity.model_fields},
    }
    facts.setdefault("global_batch_size", facts["micro_batch_size"] * facts["world_size"])
    facts.update(identity or {})
    steps = [0.1] * 20 if steps is None else steps
    images = [facts["global_batch_size"]] * len(steps)
    return Record(
        **{
            "study": "made",
            "case": " ".join(f"{key}={value}" for key, value in axes.items()),
            "axes": axes,
            "repeat": repeat,
            "identity": Identity(**facts),
            "measurement": Measurement(**{"step_time_s": steps, "images": images, **(measurement or {})}),
            "learning": None if accuracy is None else Learning(split=split, final_accuracy=accuracy),
            "environment": ENVIRONMENT,
            **more,
        }
    )


def runs(
    rng: random.Random,
    axes: dict[str, Any],
    time_s: float,
    *,
    repeats: int = 3,
    noise: float = 0.01,
    updates: int = 20,
    **more: Any,
) -> list[Record]:
    """Repeats of one case. noise: standard deviation of the runs' log offsets; updates scatter by 2 % within a run."""
    made = []
    for repeat in range(repeats):
        level = time_s * math.exp(rng.gauss(0, noise))
        steps = [level * math.exp(rng.gauss(0, 0.02)) for _ in range(updates)]
        made.append(record(axes, repeat=repeat, steps=steps, **more))
    return made


def series(
    rng: random.Random, speedup: Callable[[int], float], sizes: tuple[int, ...] = (1, 2, 4, 8), **more: Any
) -> list[Record]:
    """Repeats over world sizes with 16 images per device; speedup(n) of n devices beside one."""
    return [made for size in sizes for made in runs(rng, {"world_size": size}, 0.1 * size / speedup(size), **more)]
