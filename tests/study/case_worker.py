"""Stands in for study.worker in tests of the parent: no torch, and it does what its config's learning rate says.

lr = 1: ok. 2: out of memory. 3: an error on rank 1. 4: hangs on rank 1 after 3 updates. 5: rank 1 is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from vitscale.errors import DataError
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result
from vitscale.study.heartbeat import Heartbeat


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def main() -> int:
    folder = Path(sys.argv[1])
    payload = load_payload(folder)
    rank = int(os.environ["RANK"])
    kind = payload["config"]["optim"]["lr"]
    heartbeat = Heartbeat(folder, rank)
    for _ in range(3):
        heartbeat.mark("forward")
        heartbeat.beat()
        time.sleep(0.01)
    heartbeat.mark("forward")
    if kind == 2:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if kind == 3 and rank == 1:
        print("about to fail", file=sys.stderr)
        raise DataError("file 3 is damaged")
    if kind == 4:
        if rank != 1:
            heartbeat.mark("backward")
        time.sleep(600)
    if kind == 5:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    time.sleep(float(os.environ.get("CASE_SECONDS", "0")))
    with open(os.environ["CASE_LOG"], "a") as log:
        log.write(f"{folder.name}\n")
    if rank == 0:
        save_result(folder, result(payload))
    return 0


def result(payload: dict) -> dict:
    return {
        "info": {"train_images": 1438, "threads": os.environ.get("OMP_NUM_THREADS")},
        "measurement": {
            "step_time_s": [0.5, 0.5],
            "images": [32, 32],
            "losses": [float("nan"), 1.0],
            "communication": {},
        },
        "learning": {
            "split": "val",
            "points": [{"update": 2, "images": 64, "seconds": 1.0, "accuracy": 0.5}],
            "target": payload["measure"]["target_top1"],
            "final_accuracy": 0.5,
        },
        "environment": {"cpu": {"model": "a CPU"}, "devices": []},
    }


if __name__ == "__main__":
    sys.exit(run_rank(main))
