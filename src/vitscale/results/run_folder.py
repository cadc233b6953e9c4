"""Who may use a run folder: checks that write nothing, and the lock that a living run holds. Torch-free.

In: a path. Out: a RunFolderError, or the right to go on. The lock is the kernel's: it ends with the process that
holds it, so a killed run never leaves a folder locked. It is a POSIX record lock and not flock, which the run's forked
loader workers would go on holding; the price is that a process must not check a folder that it holds itself.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitscale.errors import RunFolderError

LOCK_FILE = "lock"
CONFIG_FILE = "config.yaml"


def check_run_folder(out: Path, *, fresh: bool) -> None:
    """Refuse a folder in which no run can begin or go on; nothing is written."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunFolderError(f"--out {out} is a file; name a folder")
    _check_not_in_use(out)
    # A crash before config.yaml was written leaves the lock file alone.
    others = [path for path in out.iterdir() if path.name != LOCK_FILE]
    if fresh and others:
        raise RunFolderError(f"--fresh needs an empty folder, and {out} is not; name another --out, or delete it")
    if others and not (out / CONFIG_FILE).exists():
        raise RunFolderError(f"{out} is not empty and not a run folder (it has no {CONFIG_FILE}); name another --out")


@contextmanager
def hold_run_folder(out: Path) -> Iterator[None]:
    """Hold the folder's lock; raises RunFolderError if a living process holds it."""
    out.mkdir(parents=True, exist_ok=True)
    fd = os.open(out / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(fd, out)
        os.ftruncate(fd, 0)
        os.write(fd, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(fd)


def _check_not_in_use(out: Path) -> None:
    try:
        fd = os.open(out / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        _lock(fd, out)
    finally:
        os.close(fd)


def _lock(fd: int, out: Path) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two is the system's choice
        owner = os.pread(fd, 200, 0).decode(errors="replace") or "another process"
        raise RunFolderError(f"{out} is in use by {owner}; wait for it, stop it, or name another --out") from None
