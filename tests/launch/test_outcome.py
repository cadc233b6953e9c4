"""Which of several ranks' endings is shown: causes before consequences, then the lowest rank."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from vitscale.launch.failure import Failure, Kind
from vitscale.launch.outcome import RankEnd, judge, stderr_tail


def said(rank: int, kind: Kind, code: int = 3, sentence: str | None = "a sentence") -> RankEnd:
    return RankEnd(rank, code, Failure(code, sentence, kind, 0.0), ended_by_us=False)


def died(rank: int, signum: int, by_us: bool = False) -> RankEnd:
    return RankEnd(rank, -signum, None, by_us)


@pytest.mark.parametrize(
    ("ends", "rank", "code", "kind"),
    [
        ([said(0, "peer"), died(1, 9)], 1, 3, "error"),
        ([said(0, "unknown"), said(1, "named", 2)], 1, 2, "error"),
        ([died(0, 9, by_us=True), said(1, "unknown")], 1, 3, "error"),
        ([died(0, 15, by_us=True), said(1, "peer")], 1, 3, "error"),
        ([said(0, "named", 2), said(1, "oom")], 0, 2, "error"),
        ([said(0, "peer"), said(1, "oom")], 1, 3, "oom"),
        ([said(0, "returned", 75), said(1, "returned", 1)], 1, 1, "error"),
        ([said(0, "returned", 75), said(1, "returned", 75)], 0, 75, "stopped"),
        ([said(0, "named", 75), said(1, "named", 75)], 0, 75, "stopped"),
        ([said(0, "returned", 0), said(1, "returned", 0)], None, 0, "ok"),
    ],
)
def test_choice(ends: list[RankEnd], rank: int | None, code: int, kind: str, tmp_path: Path) -> None:
    outcome = judge(ends, tmp_path, None)
    assert (outcome.rank, outcome.exit_code, outcome.kind) == (rank, code, kind)


@pytest.mark.parametrize(
    ("ends", "signum", "code"),
    [
        ([died(0, 15), said(1, "peer")], signal.SIGTERM, 75),  # before the trainer listened
        ([said(0, "named", 75), said(1, "named", 75)], signal.SIGTERM, 75),
        ([said(0, "returned", 0), said(1, "returned", 0)], signal.SIGTERM, 0),  # it was done already
        ([said(0, "named", 2), died(1, 15)], signal.SIGTERM, 2),
        ([died(0, 9, by_us=True), said(1, "named", 75)], signal.SIGTERM, 3),  # no checkpoint can be promised
        ([said(0, "interrupted", 130), died(1, 9, by_us=True)], signal.SIGINT, 130),
    ],
)
def test_after_a_stop_from_outside(ends: list[RankEnd], signum: int, code: int, tmp_path: Path) -> None:
    assert judge(ends, tmp_path, signum).exit_code == code


def test_an_end_after_the_report_does_not_undo_it(tmp_path: Path) -> None:
    aborted = RankEnd(0, -6, Failure(0, None, "returned", 0.0), ended_by_us=False)
    assert judge([aborted], tmp_path, None).exit_code == 0


def test_tail_keeps_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "rank0.stderr").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % n for n in range(5000)))
    lines = stderr_tail(tmp_path, 0).splitlines()
    assert (len(lines), lines[-1]) == (40, "line 4999")
    assert stderr_tail(tmp_path, 1) == ""
