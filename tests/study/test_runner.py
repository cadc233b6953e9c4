"""Jobs in real process groups: every ending is an Outcome with its cause, and the list goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import vitscale.study.runner as runner
from vitscale.errors import ConfigError, Stopped
from vitscale.launch.local import Group
from vitscale.study.case import Job, Outcome, load_payload, load_result, save_payload, save_result

HERE = Path(__file__).parent
SOURCE = Path(runner.__file__).parents[2]
ENV = {"PYTHONPATH": f"{HERE}{os.pathsep}{SOURCE}"}


def job(
    name: str = "a", *, nproc: int = 1, timeout_s: float = 30, env: dict[str, str] | None = None, **payload: Any
) -> Job:
    return Job(name, "job_worker", payload, nproc, timeout_s, {**ENV, **(env or {})})


def run(tmp_path: Path, *jobs: Job) -> list[Outcome]:
    return runner.run_jobs(jobs, tmp_path)


def test_payload_env_and_result_travel(tmp_path: Path) -> None:
    (outcome,) = run(tmp_path, job(nproc=2, env={"JOB_VALUE": "7"}, depth=4))
    assert (outcome.kind, outcome.code, outcome.sentence) == ("ok", 0, None)
    assert outcome.result == {"echo": {"depth": 4}, "world_size": "2", "value": "7"}
    assert outcome.seconds > 0


def test_failures_are_outcomes_and_the_list_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[int, str, str | None]] = []
    jobs = [
        job("error", nproc=2, error_rank=1),
        job("oom", nproc=2, oom_rank=0),
        Job("not-run", "job_worker", {}, skip_reason="zero_stage 3 needs two devices"),
        job("silent", save=False),
        job("check", code=1),
        job("ok"),
    ]
    outcomes = runner.run_jobs(jobs, tmp_path, lambda i, j, o: seen.append((i, j.name, None if o is None else o.kind)))
    assert [outcome.kind for outcome in outcomes] == ["error", "oom", "skipped", "error", "error", "ok"]
    error, oom, skipped, silent, check, _ = outcomes
    assert (error.code, error.rank, error.sentence) == (2, 1, "file 3 is damaged on rank 1")
    assert error.stderr_tail == "about to fail"
    assert (oom.code, oom.rank) == (3, 0)
    assert (skipped.code, skipped.sentence) == (None, "zero_stage 3 needs two devices")
    assert silent.sentence == "rank 0 ended without a result"
    assert check.code == 1
    assert check.result is not None
    assert seen[:3] == [(0, "error", None), (0, "error", "error"), (1, "oom", None)]


def test_a_hung_rank_times_out_and_says_where(tmp_path: Path) -> None:
    began = time.monotonic()
    (outcome,) = run(tmp_path, job(nproc=2, hang_rank=0, timeout_s=1.5))
    assert time.monotonic() - began < 20
    assert (outcome.kind, outcome.code) == ("timeout", None)
    assert outcome.sentence is not None
    assert "no result after 1.5 s" in outcome.sentence
    assert "in main" in outcome.stderr_tail


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    run(tmp_path, job())
    (outcome,) = run(tmp_path, job(save=False))
    assert (outcome.kind, outcome.result) == ("error", None)


def test_a_worker_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    (outcome,) = run(tmp_path, Job("a", "no_such_worker", {}, env=ENV))
    assert (outcome.kind, outcome.code) == ("error", 3)
    assert outcome.sentence is not None
    assert "No module named no_such_worker" in outcome.sentence


@pytest.mark.parametrize(("names", "words"), [(("a", "a"), "two jobs"), (("../a",), "cannot be the name")])
def test_bad_names_are_refused_before_anything_runs(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, *(job(name) for name in names))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("signum", "error"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_the_list(tmp_path: Path, signum: int, error: type[BaseException]) -> None:
    old = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when pytest runs in the background
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signum))
    timer.start()
    try:
        with pytest.raises(error):
            run(tmp_path, job("hung", hang_rank=0), job("later"))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, old)
    assert not (tmp_path / "later").exists()


def test_files_round_trip(tmp_path: Path) -> None:
    save_payload(tmp_path, {"a": [1, 2]})
    assert load_payload(tmp_path) == {"a": [1, 2]}
    assert load_result(tmp_path) is None
    save_result(tmp_path, {"b": None})
    assert load_result(tmp_path) == {"b": None}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["payload.json", "result.json"]


def test_the_parent_loads_no_torch() -> None:
    code = "import sys, vitscale.study.runner, vitscale.study.case; sys.exit('torch' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


def test_a_process_that_could_not_be_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "unended", property(lambda group: group.ranks[1:]))
    (outcome,) = run(tmp_path, job(nproc=2, hang_rank=0, timeout_s=1.0))
    assert outcome.kind == "timeout"
    assert re.search(r"; rank 1 \(process \d+\) could not be ended", str(outcome.sentence))
