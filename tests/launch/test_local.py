"""Groups of real, torch-free processes: how each kind of ending is noticed, named and cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vitscale.launch import local
from vitscale.launch.local import Group, start_group
from vitscale.launch.outcome import GroupOutcome

HERE = Path(__file__).parent
SOURCE = Path(local.__file__).parents[2]
ENV = {"PYTHONPATH": f"{HERE}{os.pathsep}{SOURCE}"}


def start(tmp_path: Path, *args: str, nproc: int = 2, show: bool = False) -> Group:
    return start_group("child_process", args, nproc, env=ENV, log_dir=tmp_path / "logs", show_output_of_rank0=show)


def run(tmp_path: Path, *args: str, nproc: int = 2, show: bool = False) -> GroupOutcome:
    with start(tmp_path, *args, nproc=nproc, show=show) as group:
        assert group.wait(40)
        return group.outcome()


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_of(folder: Path, nproc: int) -> list[int]:
    paths = [folder / f"pids{rank}" for rank in range(nproc)]
    wait_until(lambda: all(path.exists() for path in paths))
    return [int(pid) for path in paths for pid in path.read_text().split()]


def test_ranks_get_the_names_that_torch_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run(tmp_path, "environment", str(tmp_path)) == GroupOutcome(0, None, None, "", "ok")
    rows = [(tmp_path / f"env{rank}").read_text().split() for rank in range(2)]
    assert [row[:5] for row in rows] == [["0", "0", "2", "2", "127.0.0.1"], ["1", "1", "2", "2", "127.0.0.1"]]
    assert rows[0][5] == rows[1][5]
    assert rows[0][6] == str(max(1, (os.cpu_count() or 1) // 2))


def test_only_rank_0_is_shown_and_all_stderr_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "environment", str(tmp_path), show=True)
    shown = capfd.readouterr()
    assert shown.out == "hello from rank 0\n"
    assert shown.err == "to stderr from rank 0\n"
    for rank in range(2):
        assert (tmp_path / "logs" / f"rank{rank}.stderr").read_text() == f"to stderr from rank {rank}\n"


def test_dead_rank_is_named_although_the_other_complains_first(tmp_path: Path) -> None:
    outcome = run(tmp_path, "dies", "1", str(int(signal.SIGKILL)))
    assert (outcome.exit_code, outcome.rank, outcome.kind) == (3, 1, "error")
    assert outcome.sentence is not None
    assert outcome.sentence.startswith("rank 1 was killed by SIGKILL")


def test_dead_rank_ends_a_group_that_ignores_sigterm_within_30_s(tmp_path: Path) -> None:
    began = time.monotonic()
    outcome = run(tmp_path, "hangs", "0", str(int(signal.SIGSEGV)), nproc=3)
    assert time.monotonic() - began < 30
    assert (outcome.exit_code, outcome.rank) == (3, 0)
    assert outcome.sentence == "rank 0 was killed by SIGSEGV"
    assert "last words" in outcome.stderr_tail


def test_the_lowest_rank_of_those_that_found_the_same_error_speaks(tmp_path: Path) -> None:
    outcome = run(tmp_path, "raises", "0", nproc=3)
    assert (outcome.exit_code, outcome.rank) == (2, 0)
    assert outcome.sentence == "label 12 of image 7 is outside the 10 classes (seen by rank 0)"
    assert outcome.stderr_tail == ""  # the sentence is the parent's to show, once


def test_an_error_on_a_later_rank_ends_the_group(tmp_path: Path) -> None:
    outcome = run(tmp_path, "raises", "1")
    assert (outcome.exit_code, outcome.rank) == (2, 1)


def test_an_unknown_error_keeps_its_traceback(tmp_path: Path) -> None:
    outcome = run(tmp_path, "unknown", "1")
    assert (outcome.exit_code, outcome.sentence) == (3, "rank 1 failed: LookupError: something")
    assert "Traceback" in outcome.stderr_tail


def test_out_of_memory_says_what_to_lower(tmp_path: Path) -> None:
    outcome = run(tmp_path, "out_of_memory", "1")
    assert (outcome.exit_code, outcome.kind) == (3, "oom")
    assert outcome.sentence is not None
    assert "train.micro_batch_size" in outcome.sentence


def test_a_crash_before_run_rank_shows_its_last_line(tmp_path: Path) -> None:
    outcome = run(tmp_path, "crash_on_import", nproc=1)
    assert outcome.exit_code == 3
    assert outcome.sentence == "rank 0 ended with exit code 1: ImportError: no module named deepspeed"


@pytest.mark.parametrize("code", [1, 75])
def test_an_orderly_code_is_passed_on_and_slow_ranks_are_waited_for(tmp_path: Path, code: int) -> None:
    began = time.monotonic()
    outcome = run(tmp_path, "returns", str(code), "3")
    assert time.monotonic() - began > 3
    assert outcome.exit_code == code


def test_wait_gives_up_and_terminate_ends(tmp_path: Path) -> None:
    with start(tmp_path, "hangs_in_a_place") as group:
        wait_until(lambda: group.wait(0.5) is False)
        group.dump_stacks()
        group.terminate(grace_s=1)
        assert all(rank.exited for rank in group.ranks)
    for rank in range(2):
        assert "_sleep_for_ever" in (tmp_path / "logs" / f"rank{rank}.stderr").read_text()


def test_a_rank_that_no_signal_ends_is_left_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "KILL_WAIT_S", 0.3)
    group = start(tmp_path, "hangs_in_a_place")
    deaf = group.ranks[1]
    real = deaf.process
    try:
        wait_until(lambda: group.wait(0.5) is False)

        class Unkillable:
            """As a process looks that sleeps inside a driver's call."""

            pid = 2**22 + 1  # no process has it

            def poll(self) -> None: ...

            def send_signal(self, _: int) -> None: ...

        monkeypatch.setattr(deaf, "process", Unkillable())
        began = time.monotonic()
        group.terminate(grace_s=0.2)
        assert [rank.number for rank in group.unended] == [1]
        group.close()
        assert time.monotonic() - began < 10
    finally:
        os.killpg(real.pid, signal.SIGKILL)
        real.wait()
        group.close()


def test_a_rank_that_hangs_in_teardown_is_ended_and_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "TEARDOWN_S", 0.5)
    assert run(tmp_path, "hangs_after_reporting").exit_code == 0


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    with start(tmp_path, "waits_with_a_child", str(tmp_path)):
        pids = pids_of(tmp_path, 2)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def start_parent(tmp_path: Path, *args: str) -> subprocess.Popen[str]:
    """Run a parent of two ranks as a process of its own, so that it can be sent signals."""
    code = (
        "import sys; from pathlib import Path; from vitscale.launch.local import start_group\n"
        f"with start_group('child_process', {list(args)!r}, 2, log_dir=Path({str(tmp_path / 'logs')!r})) as group:\n"
        "    group.wait(); outcome = group.outcome()\n"
        "print(outcome.sentence); sys.exit(outcome.exit_code)"
    )
    # A test run in the background ignores SIGINT, and children inherit that.
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    environ = {**os.environ, **ENV}
    return subprocess.Popen([sys.executable, "-c", reset + code], env=environ, stdout=subprocess.PIPE, text=True)


def ending_of(parent: subprocess.Popen[str]) -> str:
    """Its output; a parent that does not end within 20 s fails the test and is killed, and its ranks with it."""
    try:
        return parent.communicate(timeout=20)[0]
    finally:
        parent.kill()


def test_kill_9_of_the_parent_leaves_nothing(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, "waits_with_a_child", str(tmp_path))
    pids = pids_of(tmp_path, 2)
    assert all(alive(pid) for pid in pids)
    parent.kill()
    parent.communicate()
    try:
        wait_until(lambda: not any(alive(pid) for pid in pids))
    finally:
        for pid in filter(alive, pids):  # a failed test must not leave them either
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_is_forwarded_and_75_passed_on(tmp_path: Path, signum: signal.Signals) -> None:
    parent = start_parent(tmp_path, "checkpoints_at_sigterm", str(tmp_path))
    wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in range(2)))
    parent.send_signal(signum)
    out = ending_of(parent)
    assert parent.returncode == 75
    assert out == "stopped by SIGTERM after update 12; run the same command again to resume\n"
    assert all((tmp_path / f"checkpoint{rank}").exists() for rank in range(2))


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, "waits_with_a_child", str(tmp_path))
    pids = pids_of(tmp_path, 2)
    parent.send_signal(signal.SIGINT)
    out = ending_of(parent)
    assert (parent.returncode, out) == (130, "interrupted\n")
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_ports_differ_and_are_below_the_kernel_range() -> None:
    ports = {local.free_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(15000 <= port < 32000 for port in ports)
