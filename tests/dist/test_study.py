"""Studies through the real command: killed and resumed, broken ranks and too little memory as rows, no child left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from vitscale.results.record import Record
from vitscale.results.records import read_records

pytestmark = pytest.mark.dist
FAULTS = Path(__file__).parent / "faults"
STUDY = """
base:
  recipe: digits
  train: {global_batch_size: none, grad_accum_steps: 1}
axes:
  engine: [ddp]
  world_size: [2]
  micro_batch_size: [16]
measure: {warmup_updates: 2, updates: 20, trace_updates: 0}
repeats: 1
timeout_s: 120
"""


def command(folder: Path, *arguments: str) -> list[str]:
    file = folder / "mine.yaml"
    file.write_text(STUDY)
    out = folder / "out"
    return [sys.executable, "-m", "vitscale", "study", str(file), "--device", "cpu", "--out", str(out), *arguments]


def records_of(folder: Path) -> dict[str, Record]:
    records, broken = read_records(folder / "out")
    assert broken == 0
    assert set(Counter((record.case, record.repeat) for record in records).values()) == {1}
    return {record.case: record for record in records}


def children_of(folder: Path) -> list[str]:
    """Living processes that name the folder; those of a killed parent have a moment to notice."""
    deadline = time.monotonic() + 5
    while True:
        done = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
        found = [line for line in done.stdout.splitlines() if "study.worker" in line and str(folder) in line]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_killed_in_the_middle_the_same_command_completes(tmp_path: Path) -> None:
    line = command(tmp_path, "axes.engine=[ddp,deepspeed:1]")
    first = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while not (text := first.stdout.readline()).startswith("[1/2]"):
        assert text, "it ended before a run did"
    time.sleep(2.5)  # the second run has begun
    first.kill()
    first.communicate()
    assert len(records_of(tmp_path)) == 1
    assert not children_of(tmp_path)

    code = (
        "import sys; from vitscale.cli.main import run; code = run(sys.argv[1:]); "
        "sys.exit('the parent has loaded torch' if 'torch' in sys.modules else code)"
    )
    second = subprocess.run([sys.executable, "-c", code, *line[3:]], capture_output=True, text=True, timeout=200)
    assert second.returncode == 0, second.stderr
    assert "1 of 2 runs are done already" in second.stdout
    records = records_of(tmp_path)
    assert {record.identity.engine: record.outcome for record in records.values()} == {"ddp": "ok", "deepspeed": "ok"}
    first, other = records.values()
    assert first.environment == other.environment  # what an engine does to its process is none of it
    ddp = records["engine=ddp world_size=2 micro_batch_size=16"]
    measured = ddp.measurement
    assert measured is not None
    assert (len(measured.warmup_step_time_s), len(measured.step_time_s), len(measured.losses)) == (2, 20, 22)
    assert set(measured.images) == {32}
    assert len(measured.peak_rss_bytes) == 2
    assert measured.communication.bytes_per_update == 4 * (ddp.identity.num_parameters or 0)  # 2 G (n-1)/n
    assert str(tmp_path / "out" / "report.html") in second.stdout
    assert (tmp_path / "out" / "report.html").is_file()
    assert not children_of(tmp_path)


def test_a_dead_a_hung_and_a_hungry_case_are_rows(tmp_path: Path) -> None:
    line = command(tmp_path, "axes.micro_batch_size=[4,6,1024]", "memory_limit_gib=0.2")
    paths = [str(FAULTS / "broken_ranks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    records = {record.identity.micro_batch_size: record for record in records_of(tmp_path).values()}
    assert {size: record.outcome for size, record in records.items()} == {4: "error", 6: "timeout", 1024: "oom"}
    dead, hung, hungry = (records[size].cause for size in (4, 6, 1024))
    assert dead is not None
    assert dead.rank == 1
    assert "rank 1 was killed by SIGKILL" in dead.sentence
    assert records[4].seconds is not None
    assert records[4].seconds < 60
    assert hung is not None
    assert hung.rank == 1
    assert "rank 1 hung in phase" in hung.sentence
    assert "of update 6: no progress for" in hung.sentence
    assert "broken" in hung.stderr_tail  # the stack shows the function that sleeps
    assert hungry is not None
    assert hungry.sentence.startswith("out of host memory; lower train.micro_batch_size")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "was killed by SIGKILL" in page
    assert not children_of(tmp_path)
