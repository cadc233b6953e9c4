"""Which of N ranks' endings is the one to show, and the exit code of the whole group. Torch-free, pure.

In: what each rank left (exit code of the process, status file). Out: a `GroupOutcome`. One failure brings down the
others, whose errors ("connection closed by peer") are consequences: causes come first here, then the lowest rank.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitscale.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, EXIT_STOPPED
from vitscale.launch.failure import Failure

TAIL_LINES = 40
TAIL_BYTES = 8192

OutcomeKind = Literal["ok", "oom", "error", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended. exit_code is negative for a signal and None while it runs; status None: it left none."""

    rank: int
    exit_code: int | None
    status: Failure | None
    ended_by_us: bool

    @property
    def failed(self) -> bool:
        """Whether this rank cannot have ended in an orderly way."""
        if self.status is not None:
            return self.status.kind != "returned" and self.status.code != EXIT_STOPPED
        return self.exit_code not in (None, EXIT_OK)


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """How a group ended: its exit code, the rank and the sentence to show, and that rank's last lines of stderr."""

    exit_code: int
    rank: int | None
    sentence: str | None
    stderr_tail: str
    kind: OutcomeKind
    curable: bool = False
    """Whether a new start from the last checkpoint may go better: a rank died, or failed for an unknown reason."""


def judge(ends: Sequence[RankEnd], log_dir: Path, stopped_by: int | None) -> GroupOutcome:
    """Choose the ending that stands for the group."""
    failures = sorted((end for end in ends if end.failed), key=lambda end: (_order(end), end.rank))
    if stopped_by is not None and all(_explained_by_stop(end) for end in failures):
        return _stopped(ends, log_dir, stopped_by)
    if failures:
        return _failed(failures[0], log_dir)
    told = [(end.rank, end.status) for end in ends if end.status is not None and end.status.code != EXIT_OK]
    if not told:
        return GroupOutcome(EXIT_OK, None, None, "", "ok")
    rank, status = min(told, key=lambda pair: (pair[1].code == EXIT_STOPPED, pair[0]))
    kind: OutcomeKind = "stopped" if status.code == EXIT_STOPPED else "error"
    return GroupOutcome(status.code, rank, status.sentence, stderr_tail(log_dir, rank), kind)


def _order(end: RankEnd) -> int:
    """Causes before consequences."""
    if end.status is None:
        return 4 if end.ended_by_us else 1  # killed by somebody else, or crashed
    return {"oom": 0, "named": 0, "unknown": 2, "peer": 3, "interrupted": 5, "returned": 6}[end.status.kind]


def _explained_by_stop(end: RankEnd) -> bool:
    """Whether a stop from outside explains this end: a signal's own end, or a peer that left first."""
    if end.status is None:
        return end.ended_by_us or end.exit_code in (-signal.SIGTERM, -signal.SIGINT)
    return end.status.kind in ("interrupted", "peer")


def _stopped(ends: Sequence[RankEnd], log_dir: Path, stopped_by: int) -> GroupOutcome:
    if all(end.status is not None and end.status.code == EXIT_OK for end in ends):
        return GroupOutcome(EXIT_OK, None, None, "", "ok")  # it was done already
    if stopped_by == signal.SIGINT:
        return GroupOutcome(EXIT_INTERRUPTED, None, "interrupted", "", "interrupted")
    killed = [end.rank for end in ends if end.exit_code == -signal.SIGKILL and end.status is None]
    if killed:
        sentence = "ranks did not stop in time after SIGTERM and were killed; the last checkpoint stands"
        return GroupOutcome(EXIT_RUN_FAILED, killed[0], sentence, stderr_tail(log_dir, killed[0]), "error")
    said = next((end.status.sentence for end in ends if end.status is not None and end.status.sentence), None)
    return GroupOutcome(EXIT_STOPPED, None, said or "stopped by a signal", "", "stopped")


def _failed(end: RankEnd, log_dir: Path) -> GroupOutcome:
    tail = stderr_tail(log_dir, end.rank)
    if end.status is None:
        return GroupOutcome(EXIT_RUN_FAILED, end.rank, _dead_sentence(end, tail), tail, "error", curable=True)
    sentence = end.status.sentence
    curable = end.status.kind in ("unknown", "peer")
    if curable:
        sentence = f"rank {end.rank} failed: {sentence}"
    code = end.status.code
    kind: OutcomeKind = "oom" if end.status.kind == "oom" else "error"
    return GroupOutcome(code, end.rank, sentence, tail, "interrupted" if code == EXIT_INTERRUPTED else kind, curable)


def _dead_sentence(end: RankEnd, tail: str) -> str:
    assert end.exit_code is not None
    if end.exit_code < 0:
        name = signal.Signals(-end.exit_code).name
        hint = ""
        if end.exit_code == -signal.SIGKILL and not end.ended_by_us:
            hint = "; if nobody did that, the host was out of memory: lower data.workers or train.micro_batch_size"
        return f"rank {end.rank} was killed by {name}{hint}"
    last = tail.strip().splitlines()[-1].strip() if tail.strip() else "it left no message"
    return f"rank {end.rank} ended with exit code {end.exit_code}: {last}"


def stderr_tail(log_dir: Path, rank: int) -> str:
    """Return the last lines of a rank's stderr."""
    try:
        data = (log_dir / f"rank{rank}.stderr").read_bytes()[-TAIL_BYTES:]
    except FileNotFoundError:
        return ""
    return "\n".join(data.decode(errors="replace").splitlines()[-TAIL_LINES:])
