"""Images per second of `vitscale train` under the published study's protocol, read from each run's metrics file.

    python throughput.py NPZ OUT [fp32] [bf16]      one fresh process per case; appends to OUT/records.jsonl

ViT-B/16 at 224 px on CIFAR-10, micro-batch 64, AdamW 1e-4: engines single and deepspeed (ZeRO 0), in fp32 and in bf16
(bf16 weights with fp32 masters). 200 updates counted, in intervals of 10, after 20 of warm-up; a row of the metrics
file ends with the host waiting for the device.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

WARMUP, COUNTED, EVERY = 20, 200, 10
CASES = [(engine, compute) for compute in ("fp32", "bf16") for engine in ("single", "deepspeed")]


def main(npz: str, out: Path, computes: list[str]) -> None:
    for engine, compute in CASES:
        if computes and compute not in computes:
            continue
        run = out / f"{engine}-{compute}"
        command = ["train", "cifar10-vit-b16", "data.source=npz", f"data.root={npz}", f"parallel.engine={engine}"]
        command += [f"precision.compute={compute}", "train.epochs=null", f"train.max_updates={WARMUP + COUNTED}"]
        command += ["data.val_limit=640", "eval.every_epochs=null", "checkpoint.every_epochs=null"]
        command += [f"log.every_updates={EVERY}", "--out", str(run)]
        begin = time.time()
        done = subprocess.run([sys.executable, "-m", "vitscale", *command], capture_output=True, text=True)
        record = {"case": run.name, "command": "vitscale " + " ".join(command), "seconds": time.time() - begin}
        record |= {"exit_code": done.returncode}
        if done.returncode:
            record["stderr"] = done.stderr[-2000:]
        else:
            record |= measured(run)
        with (out / "records.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        shown = {k: v for k, v in record.items() if k not in ("environment", "interval_step_time_s")}
        print(json.dumps(shown), flush=True)


def measured(run: Path) -> dict:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    info = next(row for row in rows if row["kind"] == "start")
    train = [row for row in rows if row["kind"] == "train" and row["update"] > WARMUP]
    steps = [row["step_time_s"] for row in train]
    median = statistics.median(steps)
    return {
        "precision": info["precision"],
        "engine": info["engine"],
        "zero_stage": info["zero_stage"],
        "updates": len(train) * EVERY,
        "step_time_s": median,
        "images_per_s": info["micro_batch_size"] / median,
        "interval_step_time_s": steps,
        "peak_allocated_bytes": train[-1]["peak_allocated_bytes"],
        "first_loss": rows[1]["losses"][0],
        "last_loss": train[-1]["loss"],
        "environment": json.loads((run / "environment.json").read_text()),
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
