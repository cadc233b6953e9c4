"""Run jobs one after the other, each in a fresh process group, and return an Outcome for every one.

One process runs one engine (DeepSpeed patches global functions), hence a group per job. The worker is started by
its module's name and never imported: this parent stays free of torch. A job that fails, hangs or runs out of memory
is an Outcome and not an exception; only a stop from outside ends the list. A hang is told from slowness by the ranks'
heartbeats, where the job has them.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vitscale.errors import ConfigError, Stopped
from vitscale.launch.local import Group, Rank, start_group
from vitscale.launch.outcome import stderr_tail
from vitscale.study.case import RESULT_FILE, Job, Outcome, OutcomeKind, load_result, save_payload
from vitscale.study.heartbeat import Hang, HangWatch, clear_beats

POLL_S = 0.5

OnProgress = Callable[[int, Job, Outcome | None], None]
"""Called with (index, job, None) before a job starts and with its Outcome when it has ended."""


def run_jobs(jobs: Sequence[Job], folder: Path, on_progress: OnProgress | None = None) -> list[Outcome]:
    """Run the jobs in order below `folder`; return their outcomes in the same order.

    Raises Stopped at SIGTERM and KeyboardInterrupt at Ctrl-C, when the running group has ended.
    """
    _check_names(jobs)
    outcomes = []
    for index, job in enumerate(jobs):
        if on_progress:
            on_progress(index, job, None)
        outcome = run_job(job, folder / job.name)
        if on_progress:
            on_progress(index, job, outcome)
        outcomes.append(outcome)
    return outcomes


def run_job(job: Job, folder: Path) -> Outcome:
    """Run one job in `folder`."""
    if job.skip_reason is not None:
        return Outcome("skipped", sentence=job.skip_reason)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT_FILE).unlink(missing_ok=True)
    save_payload(folder, job.payload)
    clear_beats(folder)
    watch = None if job.hang_s is None else Watch(HangWatch(folder, job.nproc, hang_s=job.hang_s))
    began = time.monotonic()
    with start_group(job.module, [str(folder.absolute())], job.nproc, env=job.env, log_dir=folder) as group:
        ended = group.wait(job.timeout_s, watch)
        if not ended:
            group.dump_stacks()
            group.terminate()
        _raise_if_stopped(group)
        seconds = time.monotonic() - began
        if ended:
            return _outcome_of(group, folder, seconds)
        return _timed_out(job, folder, seconds, watch.hang if watch else None, group.unended)


class Watch:
    """Asks for a hang now and then; keeps the one that was found. What Group.wait gives up for."""

    def __init__(self, watch: HangWatch) -> None:
        self._watch, self._next = watch, 0.0
        self.hang: Hang | None = None

    def __call__(self) -> bool:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + POLL_S
            self.hang = self._watch.poll()
        return self.hang is not None


def _check_names(jobs: Sequence[Job]) -> None:
    names = [job.name for job in jobs]
    for name in names:
        if not re.fullmatch(r"[\w.+=,@-]+", name):
            raise ConfigError(f"job name {name!r} cannot be the name of a folder; use letters, digits and .+=,@_-")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two jobs have the name {twice!r}; names must differ")


def _raise_if_stopped(group: Group) -> None:
    if group.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if group.stopped_by is not None:
        raise Stopped("stopped by a signal; jobs that had not ended have no result")


def _outcome_of(group: Group, folder: Path, seconds: float) -> Outcome:
    end = group.outcome()
    result = load_result(folder)
    if end.kind == "ok" and result is not None:
        return Outcome("ok", end.exit_code, result=result, seconds=seconds)
    if end.kind == "ok":
        return Outcome(
            "error", end.exit_code, 0, "rank 0 ended without a result", stderr_tail(folder, 0), seconds=seconds
        )
    kind: OutcomeKind = "oom" if end.kind == "oom" else "error"
    sentence = end.sentence or f"rank {end.rank} ended with exit code {end.exit_code}"
    return Outcome(kind, end.exit_code, end.rank, sentence, end.stderr_tail, result, seconds)


def _timed_out(job: Job, folder: Path, seconds: float, hang: Hang | None, unended: Sequence[Rank]) -> Outcome:
    """Point at the stacks, which the ranks printed when the time was over, and at processes that are still there."""
    rank = hang.rank if hang else None
    what = hang.sentence() if hang else f"no result after {job.timeout_s:g} s"
    sentence = f"{what}; each rank's stacks are at the end of {folder}/rank*.stderr{left_over(unended)}"
    return Outcome("timeout", None, rank, sentence, stderr_tail(folder, rank or 0), seconds=seconds)


def left_over(unended: Sequence[Rank]) -> str:
    """What is still there after SIGKILL, as the end of a sentence."""
    return "".join(
        f"; rank {left.number} (process {left.process.pid}) could not be ended, and may hold its device"
        for left in unended
    )
