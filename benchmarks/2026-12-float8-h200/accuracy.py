"""Training in bf16 and in float8 from equal seeds: losses, accuracy on held-out images, images/s.

    python accuracy.py NPZ OUT [--models S L] [--seeds 0 1 2] [--updates 600] [--limit-s 540] [--device cuda]

CIFAR-10 (one .npz, see make_npz.py of 2026-11-train-h200) resized to 224 px, 128 images per update, AdamW with warm-up
and cosine, flips, torch.compile, one process. A tenth of the training images is held out and judged once, at the end;
the test images are not touched. Each run is a fresh `vitscale train`; a row for each goes to OUT/records.jsonl, and the
same command skips what is there. Order: seed by seed, the two precisions of a model next to each other in
alternating order. What --limit-s does not allow is named and left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODELS = {
    "S": ("vit_small_patch16_224", 1e-3),
    "L": ("vit_large_patch16_224", 3e-4),
    "tiny": ("vit_tiny_patch16_224", 1e-3),  # to try the script itself
}
SKIPPED, EVERY = 100, 20  # updates left out of the speed (compilation, clocks); updates between two intervals


def command_of(asked: argparse.Namespace, model: str, precision: str, seed: int, run: Path) -> list[str]:
    name, rate = MODELS[model]
    keys = {
        "data.source": "npz",
        "data.root": asked.npz,
        "data.val_fraction": 0.1,
        "data.flip": "true",
        "model.name": name,
        "optim.lr": rate,
        "optim.weight_decay": 0.05,
        "optim.schedule": "cosine",
        "optim.warmup_updates": asked.updates // 10,
        "optim.clip_grad": 1.0,
        "precision.compute": precision,
        "performance.compile": "true",
        "performance.cuda_graph": "false",  # auto would give bf16 alone one
        "train.micro_batch_size": asked.batch,
        "train.epochs": "null",
        "train.max_updates": asked.updates,
        "train.seed": seed,
        "eval.every_epochs": "null",
        "eval.micro_batch_size": asked.batch,
        "checkpoint.every_epochs": "null",
        "checkpoint.keep_last": 1,
        "checkpoint.keep_best": "false",
        "log.every_updates": EVERY,
        "log.tensorboard": "false",
    }
    pairs = [f"{key}={value}" for key, value in keys.items()] + asked.override
    return ["train", "cifar10-vit-b16", *pairs, "--device", asked.device, "--out", str(run)]


def measured(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    start = next(row for row in rows if row["kind"] == "start")
    train = [row for row in rows if row["kind"] == "train"]
    steps = [row["step_time_s"] for row in train if row["update"] > SKIPPED + EVERY]
    last = next(row for row in reversed(rows) if row["kind"] == "eval")
    return {
        "precision": start["precision"],
        "notes": start["notes"],
        "losses": [loss for row in train for loss in row["losses"]],
        "val_top1": last["top1"],
        "val_loss": last["loss"],
        "step_time_s": steps,
        "images_per_s": start["micro_batch_size"] / statistics.median(steps) if steps else None,
        "peak_allocated_bytes": train[-1].get("peak_allocated_bytes"),
        "environment": json.loads((run / "environment.json").read_text()),
    }


def one(asked: argparse.Namespace, model: str, precision: str, seed: int, left: float) -> dict[str, Any]:
    run = asked.out / f"{model}-{precision}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    command = command_of(asked, model, precision, seed, run)
    record: dict[str, Any] = {"model": model, "seed": seed, "asked": precision, "updates": asked.updates}
    record |= {"command": "vitscale " + " ".join(command)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vitscale", *command], capture_output=True, text=True, timeout=left
        )
    except subprocess.TimeoutExpired:
        return record | {"problem": f"not finished after {left:.0f} s"}
    record["seconds"] = time.monotonic() - began
    if done.returncode:
        return record | {"problem": (done.stderr or done.stdout)[-2000:]}
    record |= measured(run)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)  # 3.6 GB for ViT-L
    return record


def done_already(path: Path) -> set[tuple[str, int, str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {(row["model"], row["seed"], row["asked"]) for row in rows if "problem" not in row}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("npz")
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["S", "L"], choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--limit-s", type=float, default=540)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "float8"])
    parser.add_argument("--override", nargs="*", default=[], help="further keys, such as model.depth=2")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    began, path = time.monotonic(), asked.out / "records.jsonl"
    there, longest = done_already(path), 0.0
    for seed in asked.seeds:
        for model in asked.models:
            for precision in asked.precisions[:: 1 if seed % 2 == 0 else -1]:
                left = asked.limit_s - (time.monotonic() - began)
                if (model, seed, precision) in there:
                    continue
                if left < max(30.0, longest):
                    print(f"left out for lack of time: {model} {precision} seed {seed}", flush=True)
                    continue
                record = one(asked, model, precision, seed, left)
                longest = max(longest, record.get("seconds", 0.0)) if model == asked.models[-1] else longest
                with path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                shown = ("seconds", "images_per_s", "val_top1", "val_loss", "problem")
                print(model, precision, seed, {key: record.get(key) for key in shown if key in record}, flush=True)


if __name__ == "__main__":
    main()
