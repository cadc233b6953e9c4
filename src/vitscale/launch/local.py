"""Start N ranks on this machine, watch them, and say how they ended. Torch-free.

In: a module name, its arguments and a number of processes. Out: a `GroupOutcome`. The ranks are started here and
not by torchrun: its agent costs an import of torch and hides the ranks' exit codes. What happened inside a rank
comes from its status file (launch.failure); choosing the failure to show is launch.outcome's.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from vitscale.launch.child import PARENT_FD, STATUS_DIR
from vitscale.launch.failure import read_status
from vitscale.launch.outcome import GroupOutcome, RankEnd, judge

POLL_S = 0.05
SETTLE_S = 2.0  # after a first failure: time for the other ranks to say what they know
END_GRACE_S = 10.0  # between SIGTERM and SIGKILL when the group is being ended because of a failure
STOP_GRACE_S = 120.0  # the same when a person or a scheduler stops the run: a checkpoint may be written
ORDERLY_GRACE_S = 300.0  # after a first orderly end: rank 0 may still be writing
KILL_WAIT_S = 60.0  # after SIGKILL: a process inside a driver's call may not end at all
TEARDOWN_S = 20.0  # a rank that has reported but does not exit hangs in some library's teardown

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Rank:
    """One child process and what is known of it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], log_dir: Path) -> None:
        self.number = number
        self.process = process
        self._log_dir = log_dir
        self.ended_by_us = False

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def end(self) -> RankEnd:
        """What is known of its end so far."""
        exit_code = self.process.poll()  # before the status, which is written before the process ends
        return RankEnd(self.number, exit_code, read_status(self._log_dir, self.number), self.ended_by_us)

    def send(self, signum: int) -> None:
        """Send a signal to the rank alone."""
        if not self.exited:
            self.process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL the rank with all it started (loader workers); also sweeps up after a rank that has ended."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody left in it (macOS says: not permitted)
            return


class Group:
    """N ranks as one thing: wait for it, terminate it, ask for its outcome. A context manager that leaves nothing."""

    def __init__(self, ranks: Sequence[Rank], log_dir: Path, parent_pipe: int, tee: threading.Thread | None) -> None:
        self.ranks = tuple(ranks)
        self.log_dir = log_dir
        self.stopped_by: int | None = None  # the signal that a person or a scheduler sent to this process
        self._parent_pipe = parent_pipe
        self._tee = tee
        self._swept: set[int] = set()
        self._first_failure: float | None = None
        self._first_orderly: float | None = None
        self._reported: dict[int, float] = {}
        self._kill_at: float | None = None
        self._given_up = False

    def wait(self, timeout_s: float | None = None, give_up: Callable[[], bool] | None = None) -> bool:
        """Wait until all ranks have ended, `timeout_s` has passed or `give_up` says so; return whether they have ended.

        A failed rank ends the group. SIGTERM and SIGHUP are forwarded to the ranks as SIGTERM, Ctrl-C as SIGINT;
        a second Ctrl-C kills.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with _handling(self._on_signal):
            while not self._step(time.monotonic()):
                if (deadline is not None and time.monotonic() >= deadline) or (give_up is not None and give_up()):
                    return False
                time.sleep(POLL_S)
        self._finish()
        return True

    def terminate(self, grace_s: float = END_GRACE_S) -> None:
        """SIGTERM to all ranks, SIGKILL after `grace_s`; return when all have ended, or KILL_WAIT_S later.

        Ranks that SIGKILL did not end are `unended` then.
        """
        self._begin_end(grace_s)
        self._given_up = not self.wait(grace_s + KILL_WAIT_S)

    @property
    def unended(self) -> tuple[Rank, ...]:
        """Ranks whose process still lives."""
        return tuple(rank for rank in self.ranks if not rank.exited)

    def dump_stacks(self) -> None:
        """Make each living rank print the stacks of its threads to its stderr file."""
        alive = [rank for rank in self.ranks if not rank.exited]
        for rank in alive:
            rank.send(signal.SIGUSR1)
        if alive:
            time.sleep(0.5)

    def outcome(self) -> GroupOutcome:
        """How the group ended; call it when `wait` has returned True."""
        return judge([rank.end() for rank in self.ranks], self.log_dir, self.stopped_by)

    def close(self) -> None:
        """Kill whatever still lives; what SIGKILL does not end within KILL_WAIT_S is left."""
        left = [rank for rank in self.ranks if rank.number not in self._swept]  # a swept rank's id may be another's now
        for rank in left:
            rank.kill()
        deadline = time.monotonic() + (0.0 if self._given_up else KILL_WAIT_S)
        while not all(rank.exited for rank in left) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._swept.update(rank.number for rank in left)
        self._finish()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, now: float) -> bool:
        """Look at every rank once; return whether all have ended."""
        for rank in self.ranks:
            self._look(rank, now)
        if all(rank.exited for rank in self.ranks):
            return True
        if self._first_failure is not None and now > self._first_failure + SETTLE_S:
            self._begin_end(END_GRACE_S)
        if self._first_orderly is not None and now > self._first_orderly + ORDERLY_GRACE_S:
            self._begin_end(END_GRACE_S)
        if self._kill_at is not None and now > self._kill_at:
            self._kill_all()
        return False

    def _look(self, rank: Rank, now: float) -> None:
        if rank.number in self._swept:
            return
        end = rank.end()
        if end.status is not None and now > self._reported.setdefault(rank.number, now) + TEARDOWN_S:
            rank.kill()
        if end.failed:
            self._first_failure = self._first_failure or now
        elif rank.exited:
            self._first_orderly = self._first_orderly or now
        if rank.exited:
            self._swept.add(rank.number)
            rank.kill()

    def _begin_end(self, grace_s: float) -> None:
        """Ask all living ranks to end, once; a grace that is running is only ever shortened."""
        kill_at = time.monotonic() + grace_s
        if self._kill_at is None:
            for rank in self.ranks:
                rank.ended_by_us = rank.ended_by_us or not rank.exited
                rank.send(signal.SIGTERM)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _kill_all(self) -> None:
        for rank in self.ranks:
            if not rank.exited:
                rank.ended_by_us = True
                rank.kill()

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self.stopped_by == signal.SIGINT and signum == signal.SIGINT:
            self._kill_all()
            return
        self.stopped_by = signum if self.stopped_by is None else self.stopped_by
        forwarded = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
        for rank in self.ranks:
            rank.send(forwarded)
        grace_s = END_GRACE_S if signum == signal.SIGINT else STOP_GRACE_S
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _finish(self) -> None:
        if self._tee is not None:
            self._tee.join(timeout=5)
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)
            self._parent_pipe = -1


def start_group(
    module: str,
    args: Sequence[str],
    nproc: int,
    *,
    env: Mapping[str, str] | None = None,
    log_dir: Path,
    show_output_of_rank0: bool = False,
) -> Group:
    """Start `python -m module args` as ranks 0 .. nproc - 1, each in its own process group.

    The standard error of rank r goes to log_dir/rank{r}.stderr and its standard output to rank{r}.stdout. With
    show_output_of_rank0 rank 0 inherits standard output (a terminal stays one) and its stderr is shown as well.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    for old in log_dir.glob("rank*.json"):
        old.unlink()
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", module, *args]
    shared = _environment(nproc, env, log_dir, read_fd)
    ranks: list[Rank] = []
    tee: threading.Thread | None = None
    try:
        for number in range(nproc):
            shown = show_output_of_rank0 and number == 0
            process = _start_rank(command, shared, number, log_dir, read_fd, shown)
            ranks.append(Rank(number, process, log_dir))
            if shown:
                assert process.stderr is not None
                tee = _start_tee(process.stderr, log_dir / "rank0.stderr")
    except BaseException:
        Group(ranks, log_dir, write_fd, tee).close()
        raise
    finally:
        os.close(read_fd)
    return Group(ranks, log_dir, write_fd, tee)


def _environment(nproc: int, env: Mapping[str, str] | None, log_dir: Path, read_fd: int) -> dict[str, str]:
    """Return what all ranks share."""
    merged = {**os.environ, **(env or {})}
    merged.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    if sys.platform == "linux":
        # All ranks are here: gloo need not resolve the host's name, which fails on many laptops and containers.
        merged.setdefault("GLOO_SOCKET_IFNAME", "lo")
    merged.update(
        WORLD_SIZE=str(nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        PYTHONFAULTHANDLER="1",
    )
    merged[STATUS_DIR] = str(log_dir.absolute())
    merged[PARENT_FD] = str(read_fd)
    return merged


def _start_rank(
    command: Sequence[str], shared: Mapping[str, str], number: int, log_dir: Path, read_fd: int, shown: bool
) -> subprocess.Popen[bytes]:
    environ = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
    stderr_path = log_dir / f"rank{number}.stderr"
    with open(stderr_path, "wb") as stderr, open(log_dir / f"rank{number}.stdout", "wb") as stdout:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=None if shown else stdout,
            stderr=subprocess.PIPE if shown else stderr,
            pass_fds=(read_fd,),
            start_new_session=True,
        )


def _start_tee(source: IO[bytes], path: Path) -> threading.Thread:
    """Copy a stream to a file and to our own stderr, as it comes."""

    def copy() -> None:
        with open(path, "wb", buffering=0) as log:
            while chunk := os.read(source.fileno(), 65536):
                log.write(chunk)
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()
        source.close()

    thread = threading.Thread(target=copy, name="rank0-stderr", daemon=True)
    thread.start()
    return thread


def free_port() -> int:
    """Return a port that was free a moment ago, from below the range that the kernel hands out by itself.

    Ports of that range are taken by other groups' gloo connections in the moment before rank 0 listens.
    """
    for _ in range(100):
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install the handler for the forwarded signals, those that are ignored (nohup) left so; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {signum: signal.getsignal(signum) for signum in _FORWARDED}
    for signum, previous in old.items():
        if previous is not signal.SIG_IGN:
            signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, previous in old.items():
            signal.signal(signum, previous)
