"""Twenty runs killed at random updates with SIGKILL: one rank, then all of them and their parent. Each must go on.

    python kills.py OUT [SEED]        prints a line per run and writes OUT/kills.jsonl; exit code 1 if a run is wrong

Each run trains digits on two processes for 60 updates with a checkpoint every 10. At a random update one rank is
killed: the command must end by itself with code 3 and name the rank. The same command goes on; at a later random update
the parent and all ranks are killed. The same command goes on again and must end. Then: every update's loss is that of a
run that was never killed, bit for bit (so no sample was lost or doubled), and no process of the run is left. Engines
take turns. Times mean nothing but that the bound of 30 s for a dead rank was kept.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUNS, UPDATES, EVERY, BOUND_S = 20, 60, 10, 30.0
ENGINES: list[list[str]] = [
    ["parallel.engine=ddp"],
    ["parallel.engine=fsdp2"],
    *(["parallel.engine=deepspeed", f"parallel.zero_stage={stage}"] for stage in range(4)),
]
KEYS = [
    "train.epochs=null",
    f"train.max_updates={UPDATES}",
    f"checkpoint.every_updates={EVERY}",
    "checkpoint.keep_last=2",
    "eval.every_epochs=null",
    "log.every_updates=1",
    "log.tensorboard=false",
    "data.flip=true",
    "model.drop_path=0.1",
]


def command(folder: Path, engine: list[str]) -> list[str]:
    return [sys.executable, "-m", "vitscale", "train", "digits", "-n", "2", *KEYS, *engine, "--out", str(folder)]


def start(folder: Path, engine: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(folder, engine), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:  # the line that was being written
            continue
    return found


def updates(folder: Path) -> int:
    return max((row["update"] for row in rows(folder) if row["kind"] == "train"), default=0)


def losses(folder: Path) -> dict[int, float]:
    """What was run again after a kill counts as it was in the end."""
    found: dict[int, float] = {}
    for row in rows(folder):
        if row["kind"] == "train":
            first = row["update"] - len(row["losses"]) + 1
            found |= {first + index: loss for index, loss in enumerate(row["losses"])}
    return found


def processes(folder: Path) -> dict[int, str]:
    """Process id -> command line of everything that names the folder, this script left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder} " in line + " ":
            found[int(entry.name)] = line
    return found


def wait_for(folder: Path, update: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and updates(folder) < update:
        time.sleep(0.01)


def rank_process(folder: Path, rank: int) -> int:
    for number in processes(folder):
        try:
            environment = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environment:
            return number
    raise RuntimeError(f"rank {rank} of {folder} is not running")


def one(folder: Path, engine: list[str], straight: dict[int, float], draw: random.Random) -> dict[str, Any]:
    first, rank = draw.randint(2, UPDATES // 2), draw.randint(0, 1)
    process = start(folder, engine)
    wait_for(folder, first, process)
    os.kill(rank_process(folder, rank), signal.SIGKILL)
    killed = time.monotonic()
    said = process.communicate(timeout=120)[1]
    detected_s = time.monotonic() - killed
    one_code, named = process.returncode, f"rank {rank} was killed by SIGKILL" in said

    second = draw.randint(updates(folder) + 1, UPDATES - 1) if updates(folder) < UPDATES - 1 else UPDATES - 1
    process = start(folder, engine)
    wait_for(folder, second, process)
    for number in processes(folder):
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=60)
    time.sleep(1.5)
    orphans_of_all = len(processes(folder))

    process = start(folder, engine)
    process.communicate(timeout=600)
    result = {
        "engine": " ".join(engine),
        "rank_killed_at": first,
        "rank": rank,
        "one_code": one_code,
        "named": named,
        "detected_s": round(detected_s, 1),
        "all_killed_at": second,
        "code": process.returncode,
        "losses_equal": losses(folder) == straight,
        "orphans": orphans_of_all + len(processes(folder)),
    }
    result["ok"] = (
        one_code == 3
        and named
        and detected_s < BOUND_S
        and process.returncode == 0
        and result["losses_equal"]
        and not result["orphans"]
    )
    return result


def main(out: Path, seed: int) -> int:
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    straight: dict[str, dict[int, float]] = {}
    wrong = 0
    with (out / "kills.jsonl").open("a") as log:
        for number in range(RUNS):
            engine = ENGINES[number % len(ENGINES)]
            name = "-".join(engine).replace("parallel.", "").replace("=", "")
            if name not in straight:
                process = start(out / f"straight-{name}", engine)
                if process.wait():
                    raise SystemExit(
                        f"the run that is not killed failed: {process.stderr.read() if process.stderr else ''}"
                    )
                straight[name] = losses(out / f"straight-{name}")
                assert list(straight[name]) == list(range(1, UPDATES + 1))
            result = {"run": number + 1, **one(out / f"run{number + 1:02d}-{name}", engine, straight[name], draw)}
            wrong += not result["ok"]
            log.write(json.dumps(result) + "\n")
            log.flush()
            print(json.dumps(result), flush=True)
    print(f"{RUNS} runs, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
