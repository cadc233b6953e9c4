"""Who may use a run folder: checks that write nothing, and the lock that a living run holds. Torch-free.

In: a path. Out: a RunFolderError, or the right to go on. The lock is the kernel's: it ends with the process that
holds it, so a killed run never leaves a folder locked. It is a POSIX record lock and not flock, which the run's forked
loader workers would go on holding; the price is that a process must not check a folder that it holds itself.
A run that ends before it wrote anything leaves no folder behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitscale.errors import RunFolderError

LOCK_FILE = "lock"
CONFIG_FILE = "config.yaml"


def check_run_folder(out: Path, *, fresh: bool) -> None:
    """Refuse a folder in which no run can begin or go on; nothing is written."""
    check_folder(out)
    if not out.exists():
        return
    _check_not_in_use(out)
    # A crash before config.yaml was written leaves the lock file alone.
    others = [path for path in out.iterdir() if path.name != LOCK_FILE]
    if fresh and others:
        raise RunFolderError(f"--fresh needs an empty folder, and {out} is not; name another --out, or delete it")
    if others and not (out / CONFIG_FILE).exists():
        raise RunFolderError(f"{out} is not empty and not a run folder (it has no {CONFIG_FILE}); name another --out")


def check_is_run(run: Path) -> None:
    """Refuse a folder that no run has written."""
    if not (run / CONFIG_FILE).is_file():
        raise RunFolderError(f"{run} is not a run folder: it has no {CONFIG_FILE}")


@contextmanager
def hold_run_folder(out: Path) -> Iterator[None]:
    """Hold the folder's lock; raises RunFolderError if a living process holds it or it cannot be made."""
    fd, made = _open_lock(out)
    try:
        _lock(fd, out)
        if not (out / LOCK_FILE).exists():  # a run that ended just now has taken its folder away
            raise RunFolderError(f"{out} was in use a moment ago; run the same command again")
        try:
            os.ftruncate(fd, 0)
            os.write(fd, f"process {os.getpid()} on {socket.gethostname()}".encode())
            yield
        finally:
            _remove_if_unused(out, made)
    finally:
        os.close(fd)


def _open_lock(out: Path) -> tuple[int, list[Path]]:
    """The lock file, and the folders that had to be made for it, innermost first."""
    missing = [path for path in (out, *out.parents) if not path.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        return os.open(out / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644), missing
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunFolderError(f"--out {out} cannot be written ({error.strerror}); name another folder") from None


def _remove_if_unused(out: Path, made: list[Path]) -> None:
    """Take away the lock file of a run that wrote nothing else, and then the folders that were made for it."""
    with suppress(OSError):
        if [path.name for path in out.iterdir()] != [LOCK_FILE]:
            return
        (out / LOCK_FILE).unlink()
        for path in made:
            path.rmdir()


def check_folder(out: Path) -> None:
    """Refuse a path that is no folder and cannot become one; nothing is written."""
    if out.is_dir():
        return
    if out.exists():
        raise RunFolderError(f"--out {out} is a file; name a folder")
    nearest = next(path for path in out.absolute().parents if path.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"--out {out} cannot be made: {nearest} is a file; name another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunFolderError(f"--out {out} cannot be made: {nearest} is not writable; name another folder")


def _check_not_in_use(out: Path) -> None:
    try:
        fd = os.open(out / LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(f"--out {out} cannot be written ({error.strerror}); name another folder") from None
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
