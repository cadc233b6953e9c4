"""What the trainer costs over the bare engine step: ABBA pairs in one process, on one engine.

    python overhead.py NPZ OUT ENGINE COMPUTE [KEY=VALUE ...]     appends to OUT/records.jsonl

A: `engine.train_batch` on one resident batch, UPDATES times, nothing else. B: as many updates of Trainer.fit on
CIFAR-10 (loader, copy to the device, resize to 224 px and normalisation there, logging, metrics file, TensorBoard,
progress). Both end with the host waiting for the device. The overhead is the median of B / A - 1 over the pairs.

Where the host is the bottleneck (eager bf16) its speed drifts by more than the overhead. So B also counts, in the same
updates, the host's time outside of `engine.train_batch`: its share of the time inside is the overhead of such a step.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import vitscale
from vitscale.assembly import assemble, open_data
from vitscale.checkpoint import TrainState
from vitscale.config.decide import decide
from vitscale.distributed import joined
from vitscale.measure.environment import describe
from vitscale.observers.build import build_observers
from vitscale.trainer import Plan, Trainer

UPDATES = {"fp32": 20, "bf16": 100}
PAIRS = 8


def main(npz: str, out: Path, engine_name: str, compute: str, *overrides: str) -> None:
    keys = ["data.source=npz", f"data.root={npz}", f"parallel.engine={engine_name}", f"precision.compute={compute}"]
    keys += [
        "train.epochs=null",
        f"train.max_updates={10**6}",
        "eval.every_epochs=null",
        "checkpoint.every_epochs=null",
        *overrides,
    ]
    config = vitscale.load_config("cifar10-vit-b16", keys)
    updates = UPDATES[compute]
    inside: list[float] = []  # seconds of each train_batch in the trainer
    loops: list[float] = []  # seconds of each fit
    with joined("cuda", group=True) as world:
        decisions = decide(config, world_size=1, device_type="cuda")
        parts = assemble(config, decisions, world, open_data(config))
        engine, loader = parts.engine, parts.loader
        resident = next(loader.iterate(0, 1))
        observers = build_observers(config, out / f"overhead-{engine_name}-{compute}")
        info = {
            "out": str(out), "engine": engine_name, "zero_stage": 0, "world_size": 1, "device": str(world.device),
            "precision": "/".join(decisions.precision), **decisions.batch._asdict(),
            "train_images": len(parts.splits.train), "val_images": len(parts.splits.val), "total_updates": 10**6,
            "updates_per_epoch": 10**9, "update": 0,
            "augment_on": loader.augment_on, "notes": [],
        }  # fmt: skip
        for observer in observers:
            observer.start(info)

        def bare() -> float:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(updates):
                engine.train_batch(resident)
            torch.cuda.synchronize()
            return (time.perf_counter() - begin) / updates

        def trained() -> float:
            plan = Plan(engine.update + updates, 10**9, None)
            state = TrainState(engine.update, 0, 0, {}, evaluated_window=updates)
            trainer = Trainer(engine, loader, plan, state, config, world, out, lambda stop: None, observers)
            trainer._checkpoint = lambda: True  # the end of a run, not part of an update
            trainer.engine = Timed(engine, inside)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.fit()
            loops.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
            return (time.perf_counter() - begin) / updates

        bare(), trained()
        inside.clear(), loops.clear()
        pairs = []
        for index in range(PAIRS):
            first, second = (bare, trained) if index % 2 == 0 else (trained, bare)
            times = {first.__name__: first(), second.__name__: second()}
            pairs.append((times["bare"], times["trained"]))
        ratios = [b / a - 1 for a, b in pairs]
        record = {
            "case": "-".join(["overhead", engine_name, compute, *overrides]),
            "command": "python overhead.py " + " ".join(sys.argv[1:]),
            "precision": "/".join(decisions.precision),
            "bare_step_time_s": [a for a, _ in pairs],
            "trainer_step_time_s": [b for _, b in pairs],
            "overhead_median": statistics.median(ratios),
            "overhead_all": ratios,
            "updates_per_window": updates,
            "host_share_outside_engine": sum(loops) / sum(inside) - 1,
        }
        print(json.dumps(record), flush=True)
        with (out / "records.jsonl").open("a") as file:
            file.write(json.dumps({**record, "environment": describe()}) + "\n")


class Timed:
    """An engine that notes how long the host spends in each update."""

    def __init__(self, engine: Any, seconds: list[float]) -> None:
        self._engine, self._seconds = engine, seconds

    def train_batch(self, batch: Any) -> Any:
        begin = time.perf_counter()
        output = self._engine.train_batch(batch)
        self._seconds.append(time.perf_counter() - begin)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
