"""A worker for the tests of the runner: does what its payload says. Imports no torch."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from vitscale.errors import DataError
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


def main() -> int:
    folder = Path(sys.argv[1])
    payload = load_payload(folder)
    rank = int(os.environ["RANK"])
    if rank == payload.get("hang_rank"):
        time.sleep(600)
    if rank == payload.get("oom_rank"):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if rank == payload.get("error_rank"):
        print("about to fail", file=sys.stderr)
        raise DataError(f"file 3 is damaged on rank {rank}")
    if rank == 0 and payload.get("save", True):
        value = os.environ.get("JOB_VALUE")
        save_result(folder, {"echo": payload, "world_size": os.environ["WORLD_SIZE"], "value": value})
    return int(payload.get("code", 0))


if __name__ == "__main__":
    sys.exit(run_rank(main))
