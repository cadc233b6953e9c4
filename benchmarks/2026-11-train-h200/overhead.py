"""What the trainer costs over the bare engine step: ABBA pairs in one process, on one engine.

    python overhead.py NPZ OUT ENGINE COMPUTE [KEY=VALUE ...]     appends to OUT/records.jsonl

A: `engine.train_batch` on one resident batch, 200 times, nothing else. B: 200 updates of Trainer.fit on CIFAR-10 (loader,
copy to the device, resize to 224 px and normalisation there, logging, metrics file, TensorBoard, progress). Both end
with the host waiting for the device. The overhead is the median of B / A - 1 over the pairs.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

import vitscale
from vitscale.checkpoint import TrainState
from vitscale.config.decide import decide
from vitscale.data.loader import TrainLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import joined
from vitscale.engine.build import build_engine
from vitscale.losses import build_loss
from vitscale.measure.environment import describe
from vitscale.models.build import build_model
from vitscale.observers.build import build_observers
from vitscale.trainer import Plan, Trainer

UPDATES, PAIRS = 200, 7


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
    with joined("cuda", group=True) as world:
        decisions = decide(config, world_size=1, device_type="cuda")
        splits = open_splits(config.data, img_size=224, in_chans=3, num_classes=10)
        model = build_model(config.model, 10, 0)
        loader = TrainLoader(
            splits.train, config, decisions.batch, img_size=224, mean=splits.mean, std=splits.std, num_classes=10,
            device=world.device,
        )  # fmt: skip
        engine = build_engine(model, build_loss(config.train), config, decisions, world, 10**6)
        resident = next(loader.iterate(0, 1))
        observers = build_observers(config, out / f"overhead-{engine_name}-{compute}")
        info = {
            "out": str(out), "engine": engine_name, "zero_stage": 0, "world_size": 1, "device": str(world.device),
            "precision": "/".join(decisions.precision), **decisions.batch._asdict(), "train_images": len(splits.train),
            "val_images": len(splits.val), "total_updates": 10**6, "updates_per_epoch": 10**9, "update": 0,
            "augment_on": loader.augment_on, "notes": [],
        }  # fmt: skip
        for observer in observers:
            observer.start(info)

        def bare() -> float:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(UPDATES):
                engine.train_batch(resident)
            torch.cuda.synchronize()
            return (time.perf_counter() - begin) / UPDATES

        def trained() -> float:
            plan = Plan(engine.update + UPDATES, 10**9, None)
            state = TrainState(engine.update, 0, 0, {}, evaluated_window=UPDATES)
            trainer = Trainer(engine, loader, plan, state, config, world, out, lambda stop: None, observers)
            trainer._checkpoint = lambda: True  # the end of a run, not part of an update
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.fit()
            torch.cuda.synchronize()
            return (time.perf_counter() - begin) / UPDATES

        bare(), trained()
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
        }
        print(json.dumps(record), flush=True)
        with (out / "records.jsonl").open("a") as file:
            file.write(json.dumps({**record, "environment": describe()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
