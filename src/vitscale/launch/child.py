"""The child's side of a process group: `run_rank(main)` wraps the main function of every rank.

It ends the rank when the parent has gone, leaves the rank's exit code and error sentence in a status file, and
prints a traceback only for errors that vitscale does not know. It never decides what a run does at SIGTERM: the
trainer does. Torch-free, so that it can be imported before anything slow.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from vitscale.launch.failure import Failure, describe, write_status

PARENT_FD = "VITSCALE_PARENT_FD"
STATUS_DIR = "VITSCALE_STATUS_DIR"


def run_rank(main: Callable[[], int]) -> int:
    """Run `main` as one rank and return the exit code that the process should end with."""
    watch_parent()
    _prepare_signals()
    try:
        failure = Failure(main(), None, "returned", time.time())
    except (Exception, KeyboardInterrupt) as error:
        failure = describe(error)
        if failure.kind == "unknown":
            traceback.print_exc()
        elif failure.kind == "peer":  # a consequence: the parent says what came first
            print(f"another rank has gone: {failure.sentence}", file=sys.stderr)
    _report(failure)
    return failure.code


def watch_parent() -> None:
    """Start a thread that ends this process, and its own children, as soon as the parent has gone.

    The parent holds the only write end of a pipe: when it ends in any way, kill -9 included, reading gives EOF.
    """
    text = os.environ.pop(PARENT_FD, None)
    if text is not None:
        threading.Thread(target=_end_at_eof, args=(int(text),), name="parent-watch", daemon=True).start()


def watch_launcher() -> None:
    """Start a thread that ends this rank when the outer launcher that started it has gone.

    torchrun killed by SIGKILL leaves its ranks behind, holding the devices.
    """
    threading.Thread(target=_end_when_adopted, args=(os.getppid(),), name="launcher-watch", daemon=True).start()


def _end_when_adopted(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _end_at_eof(fd: int) -> None:
    os.read(fd, 1)
    if os.getpgrp() == os.getpid():  # we lead our own group: take loader processes along
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _prepare_signals() -> None:
    """Make Ctrl-C raise, and SIGUSR1 print all stacks (the parent sends it before it kills a hung rank)."""
    if threading.current_thread() is threading.main_thread() and STATUS_DIR in os.environ:
        # A shell's background job ignores SIGINT and children inherit that; here only the parent sends it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or 2, all_threads=True)


def _report(failure: Failure) -> None:
    """Tell the parent; without one (an outer launcher started this rank) say it here."""
    rank = int(os.environ.get("RANK", "0"))
    folder = os.environ.get(STATUS_DIR)
    if folder:
        write_status(Path(folder), rank, failure)
    elif failure.sentence:
        print(f"error: [rank {rank}] {failure.sentence}", file=sys.stderr, flush=True)
