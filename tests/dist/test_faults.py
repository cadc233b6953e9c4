"""`vitscale train` when a rank is killed or hangs: who is named, what goes on by itself, and that nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(280)]
FAULTS = Path(__file__).parent / "faults" / "broken_train"
RUN = ["digits", "train.epochs=null", "train.max_updates=60", "checkpoint.every_updates=20", "checkpoint.keep_last=9",
       "eval.every_epochs=null", "log.every_updates=10", "log.tensorboard=false", "data.flip=true"]  # fmt: skip


def environment(tmp_path: Path, fault: str) -> dict[str, str]:
    paths = [str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    planted = {"VITSCALE_FAULT": fault, "VITSCALE_FAULT_DONE": str(tmp_path / "done")} if fault else {}
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return {**clean, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **planted}


def train(tmp_path: Path, out: str, *options: str, fault: str = "", nproc: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vitscale", "train", *RUN, "--out", str(tmp_path / out), "-n", str(nproc), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=environment(tmp_path, fault), check=False
    )


def losses(folder: Path) -> dict[int, float]:
    """update -> loss; what was run again counts once, as it was in the end."""
    found: dict[int, float] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "train":
            first = row["update"] - len(row["losses"]) + 1
            found |= {first + index: loss for index, loss in enumerate(row["losses"])}
    return found


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder: ranks, loaders, parents."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                lines.append(line)
    return lines


def test_a_killed_rank_is_named_and_the_run_goes_on_by_itself(tmp_path: Path) -> None:
    straight = train(tmp_path, "straight")
    assert straight.returncode == 0, straight.stderr
    began = time.monotonic()
    plain = train(tmp_path, "plain", fault="kill@33")
    assert plain.returncode == 3
    assert "rank 1 was killed by SIGKILL" in plain.stderr
    assert time.monotonic() - began < 60
    assert not processes_of(tmp_path)
    (tmp_path / "done").unlink()
    restarted = train(tmp_path, "restarted", "--restarts", "1", fault="kill@33")
    assert restarted.returncode == 0, restarted.stderr
    assert "restart 1 of 1 goes on from update 20" in restarted.stderr
    expected = losses(tmp_path / "straight")
    assert list(expected) == list(range(1, 61))
    assert losses(tmp_path / "restarted") == expected  # bit for bit: no sample lost or doubled
    assert not processes_of(tmp_path)


def test_a_hung_rank_is_named(tmp_path: Path) -> None:
    done = train(tmp_path, "hung", "--hang-limit", "4", fault="hang@33")
    assert done.returncode == 3
    assert "rank 1 hung in phase" in done.stderr
    assert "of update 34: no progress for" in done.stderr
    assert "--hang-limit allows longer pauses" in done.stderr
    assert "broken" in done.stderr  # the stack shows the function that sleeps
    assert not processes_of(tmp_path)


def test_ranks_of_another_launcher_watch_each_other(tmp_path: Path) -> None:
    """torchrun itself would wait for hours."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitscale",
               "train", *RUN, "--out", str(tmp_path / "run"), "--hang-limit", "4"]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, env=environment(tmp_path, "hang@33"), check=False
    )
    assert done.returncode != 0
    assert "error: [rank 0] rank 1 hung in phase" in done.stderr
    assert "broken" in done.stderr or "update 34" in done.stderr
    assert not processes_of(tmp_path)
