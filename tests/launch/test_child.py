"""What a rank does on its own: codes, sentences without a parent, and the end when its launcher has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitscale.errors import ConfigError
from vitscale.launch import child
from vitscale.launch.child import run_rank
from vitscale.launch.failure import read_status

SOURCE = Path(child.__file__).parents[2]


def raise_(error: BaseException) -> int:
    raise error


def test_without_a_parent_the_rank_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    assert run_rank(lambda: raise_(ConfigError("optim.lr is wrong"))) == 2
    assert capsys.readouterr().err == "error: [rank 3] optim.lr is wrong\n"
    assert run_rank(lambda: 0) == 0
    assert capsys.readouterr().err == ""


def test_with_a_parent_only_the_status_file_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(child.STATUS_DIR, str(tmp_path))
    monkeypatch.setattr(child, "_prepare_signals", lambda: None)
    assert run_rank(lambda: raise_(ConfigError("optim.lr is wrong"))) == 2
    assert capsys.readouterr().err == ""
    status = read_status(tmp_path, 1)
    assert status is not None
    assert (status.code, status.sentence, status.kind) == (2, "optim.lr is wrong", "named")


def test_a_consequence_is_one_line_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(child.STATUS_DIR, str(tmp_path))
    monkeypatch.setattr(child, "_prepare_signals", lambda: None)
    assert run_rank(lambda: raise_(RuntimeError("Connection closed by peer [127.0.0.1]:1"))) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rank_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    rank = (
        "import os, sys, time; from vitscale.launch.child import watch_launcher\n"
        "watch_launcher(); open(sys.argv[1], 'w').write(str(os.getpid()) + '.'); time.sleep(60)"
    )
    pid_file = tmp_path / "pid"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}, {str(pid_file)!r}])"
    process = subprocess.Popen([sys.executable, "-c", launcher], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    while not (pid_file.exists() and pid_file.read_text().endswith(".")):
        time.sleep(0.02)
    pid = int(pid_file.read_text()[:-1])
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
