"""What measuring costs: updates with the meter against the same updates without it, in ABBA quads on one engine.

    python meter_cost.py OUT [KEY=VALUE ...]     appends to OUT/meter-cost.jsonl

A: loader, copy and `engine.train_batch`, nobody listening. B: the same with a Meter, at its dearest (every phase of
every update timed on the device), begun one update before its window, since it begins once a run. Each window ends
with the host waiting for the device. A quad's ratio is (B + B) / (A + A), which a steady drift leaves alone; the cost
is their geometric mean with its 95 % interval (Student's t on logarithms). The goal: its upper end under 1 %.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import vitscale
from vitscale.assembly import assemble, open_data
from vitscale.config.decide import decide
from vitscale.distributed import joined
from vitscale.measure.environment import describe
from vitscale.measure.meter import Meter
from vitscale.measure.windows import SPANNED
from vitscale.phases import NULL, Recorder

QUADS = 24
UPDATES = SPANNED - 1  # a window: as many as are timed phase by phase, but one
T_95 = 2.069  # Student's t for 23 degrees of freedom


def main(out: Path, *overrides: str) -> None:
    changes = ["data.source=synthetic", "data.root=null", "train.epochs=null", f"train.max_updates={10**6}", *overrides]
    config = vitscale.load_config("cifar10-vit-b16", changes)
    with joined("cuda", group=True) as world:
        decisions = decide(config, world_size=1, device_type="cuda")
        parts = assemble(config, decisions, world, open_data(config))
        batches = parts.loader.iterate(0, 10**6)

        def update(recorder: Recorder) -> None:
            batch = next(batches)
            parts.engine.train_batch(batch)
            recorder.update(batch.num_samples)

        def window(recorder: Recorder) -> float:
            parts.engine.recorder = parts.loader.recorder = recorder
            update(recorder)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(UPDATES):
                update(recorder)
            torch.cuda.synchronize()
            return (time.perf_counter() - begin) / UPDATES

        def metered() -> float:
            meter = Meter(world.device, 0, 1, warmup=0, updates=None)
            seconds = window(meter)
            parts.engine.recorder = parts.loader.recorder = NULL
            meter.finish(lambda value: [value])  # ends its thread, which asks NVML
            return seconds

        window(NULL), metered(), window(NULL)
        quads = [(window(NULL), metered(), metered(), window(NULL)) for _ in range(QUADS)]
    record: dict[str, Any] = {"command": "python meter_cost.py " + " ".join(sys.argv[1:]), "quads_step_time_s": quads}
    record |= cost(quads) | {"precision": "/".join(decisions.precision), "environment": describe()}
    out.mkdir(parents=True, exist_ok=True)
    with (out / "meter-cost.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps({key: record[key] for key in ("step_time_s", "cost", "cost_low", "cost_high")}))


def cost(quads: list[tuple[float, float, float, float]]) -> dict[str, float]:
    logs = [math.log((b + c) / (a + d)) for a, b, c, d in quads]
    mean, half = statistics.fmean(logs), T_95 * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(value) - 1 for value in (mean - half, mean, mean + half))
    return {"step_time_s": statistics.median(a for a, *_ in quads), "cost": middle, "cost_low": low, "cost_high": high}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
