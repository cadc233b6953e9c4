"""Accuracy of recipe cifar10-speedrun against seconds: variants and seeds, each in a fresh process, unattended.

    python speedrun.py NPZ OUT base short:0,1,2 base+lr3:1 --val --limit 300 [section.key=value ...]

NAME is of VARIANTS; NAME+NAME lays one on another; :SEEDS follows, else seed 0. --val holds 5,000 training images out
and evaluates on those: that is where settings are chosen. Without it the recipe trains on all 50,000, and the test
images give the curve. --limit: seconds after which a run is stopped and counts as failed. key=value holds for all.
Appends a record per run to OUT/records.jsonl and prints it; table.py makes the table. What runs print is in
OUT/output.log. A run that is there already, with the same command, is not run again.

Seconds are those of the updates, on the device's time line, evaluations left out. Compilation and the capture of the
graph lie in the first interval of the metrics; what that took beyond as many updates at the median rate is `setup_s`,
is stated, and is left out of all other seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TARGETS = (0.90, 0.94)
FAST = ("performance.compile=true", "performance.cuda_graph=true", "log.tensorboard=false")
VARIANTS: dict[str, tuple[str, ...]] = {
    # 94 %: the recipe, and one change at a time
    "base": (),
    "lr3": ("optim.lr=3e-3",),
    "light": ("data.randaugment=1", "data.mixup=0"),
    "narrow": ("model.embed_dim=256", "model.num_heads=4", "train.epochs=150", "optim.lr=2e-3"),
    "long": ("train.epochs=180",),
    "patch": ("model.stem=patch",),
    "muon": ("optim.name=muon", "optim.momentum=0.95", "optim.lr=2e-3"),
    # 90 %: less to regularise in a short run
    "short": (
        *("train.epochs=30", "optim.warmup_updates=300", "optim.ema_decay=0.995"),
        *("model.drop_path=0", "data.randaugment=1", "data.mixup=0"),
    ),
    "bare": ("data.randaugment=0",),
    # lengths, for either
    **{f"epochs{n}": (f"train.epochs={n}",) for n in (20, 24, 40, 50, 70, 80, 150)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz")
    parser.add_argument("out", type=Path)
    parser.add_argument("words", nargs="+", metavar="NAME[+NAME][:SEEDS] | section.key=value")
    parser.add_argument("--val", action="store_true")
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--device")
    options = parser.parse_intermixed_args()
    changes = [word for word in options.words if "=" in word]
    options.out.mkdir(parents=True, exist_ok=True)
    for word in options.words:
        if "=" in word:
            continue
        names, _, seeds = word.partition(":")
        for seed in map(int, (seeds or "0").split(",")):
            run(options, names, seed, changes)


def run(options: argparse.Namespace, names: str, seed: int, changes: list[str]) -> None:
    arguments = ["cifar10-speedrun", "data.source=npz", f"data.root={options.npz}", *FAST]
    arguments += [change for name in names.split("+") for change in VARIANTS[name]]
    arguments += [f"train.seed={seed}", *(["data.val_fraction=0.1"] if options.val else []), *changes]
    if options.device:
        arguments += ["--device", options.device]
    file = options.out / "records.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if any(one["arguments"] == arguments and one["exit_code"] == 0 for one in known):
        return
    folder = options.out / f"{names}-{'val' if options.val else 'test'}-{seed}-{time.time_ns() // 10**6}"
    record: dict[str, Any] = {"variant": " ".join([names, *changes]), "split": "val" if options.val else "test"}
    record |= {"seed": seed, "arguments": arguments}
    begin = time.monotonic()
    command = [sys.executable, "-m", "vitscale", "train", *arguments, "--out", str(folder)]
    with (options.out / "output.log").open("a") as log:
        log.write(f"--- {' '.join(command)}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        record["exit_code"] = process.wait(options.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
        process.wait()
        record["exit_code"] = None  # output.log has the reason of any other failure
    record["wall_s"] = round(time.monotonic() - begin, 1)
    if (folder / "metrics.jsonl").exists():  # also of a run that was stopped
        record |= measured([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        record["environment"] = json.loads((folder / "environment.json").read_text())
    with file.open("a") as lines:
        lines.write(json.dumps(record) + "\n")
    print(json.dumps({k: v for k, v in record.items() if k not in ("environment", "arguments", "curve")}), flush=True)


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a run's metrics say: seconds without the set-up, accuracy along the way, and when each target was met."""
    start = next(row for row in rows if row["kind"] == "start")
    train = [row for row in rows if row["kind"] == "train"]
    found: dict[str, Any] = {"precision": start["precision"], "global_batch_size": start["global_batch_size"]}
    if len(train) < 3:
        return found
    step = statistics.median(row["step_time_s"] for row in train[1:])
    first = len(train[0]["losses"])
    setup = max(0.0, first * (train[0]["step_time_s"] - step))
    curve = [
        {"epoch": row["epoch"], "seconds": row["train_seconds"] - setup, "top1": row["top1"], "loss": row["loss"]}
        for row in rows
        if row["kind"] == "eval"
    ]
    met = {}
    for target in TARGETS:
        there = [point for point in curve if point["top1"] >= target]
        met[f"{target:.0%}"] = {k: round(there[0][k], 2) for k in ("seconds", "epoch")} if there else None
    found |= {
        "step_time_s": step,
        "images_per_s": start["global_batch_size"] / step,
        "setup_s": round(setup, 1),
        "updates": train[-1]["update"],
        "peak_allocated_bytes": train[-1].get("peak_allocated_bytes"),
        "last_train_loss": train[-1]["loss"],
        "met": met,
        "curve": curve,
    }
    if curve:
        found |= {"final_top1": curve[-1]["top1"], "seconds": round(curve[-1]["seconds"], 2)}
    return found


if __name__ == "__main__":
    main()
