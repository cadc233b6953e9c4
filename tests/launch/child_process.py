"""A rank for the tests of launch and study: does what its first argument says. Imports no torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from vitscale.errors import ConfigError, DataError, Stopped
from vitscale.launch.child import run_rank

RANK = int(os.environ["RANK"])


def _on_rank(number: str) -> bool:
    return int(number) == RANK


def _sleep_for_ever() -> int:
    while True:
        time.sleep(0.1)


def environment(folder: str) -> int:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    (Path(folder) / f"env{RANK}").write_text(" ".join(os.environ[name] for name in names))
    print(f"hello from rank {RANK}")
    print(f"to stderr from rank {RANK}", file=sys.stderr)
    return 0


def dies(rank: str, signum: str) -> int:
    """Rank `rank` dies by a signal; the others find out by a broken connection, as with gloo."""
    if _on_rank(rank):
        os.kill(os.getpid(), int(signum))
    time.sleep(0.3)
    raise RuntimeError("[tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3601")


def hangs(rank: str, signum: str) -> int:
    """Rank `rank` dies; the others wait for it and ignore SIGTERM, as ranks in a collective do."""
    if _on_rank(rank):
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), int(signum))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _sleep_for_ever()


def hangs_in_a_place(_: str = "") -> int:
    return _sleep_for_ever()


def raises(rank: str) -> int:
    """All ranks from `rank` on raise a named error, the later ones first."""
    if int(rank) > RANK:
        return _sleep_for_ever()
    time.sleep(0.2 if int(rank) == RANK else 0)
    raise DataError(f"label 12 of image 7 is outside the 10 classes (seen by rank {RANK})")


def unknown(rank: str) -> int:
    if _on_rank(rank):
        raise LookupError("something\nodd")
    return _sleep_for_ever()


def out_of_memory(rank: str) -> int:
    class OutOfMemoryError(RuntimeError):
        """As torch names it."""

    if _on_rank(rank):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return _sleep_for_ever()


def returns(code: str, delay_of_rank0: str = "0") -> int:
    if RANK == 0:
        time.sleep(float(delay_of_rank0))
    return int(code)


def bad_config() -> int:
    raise ConfigError("optim.lr is wrong")


def checkpoints_at_sigterm(folder: str) -> int:
    """A trainer in small: at SIGTERM it takes a moment to write, then ends with 75."""
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    (Path(folder) / f"ready{RANK}").touch()
    while not stop:
        time.sleep(0.02)
    time.sleep(0.3)
    (Path(folder) / f"checkpoint{RANK}").touch()
    raise Stopped("stopped by SIGTERM after update 12; run the same command again to resume")


def waits_with_a_child(folder: str) -> int:
    """Has a child of its own, as a loader worker is."""
    pid = os.fork()
    if pid == 0:
        _sleep_for_ever()
    path = Path(folder) / f"pids{RANK}"
    path.with_suffix(".partial").write_text(f"{os.getpid()} {pid}")
    path.with_suffix(".partial").rename(path)
    return _sleep_for_ever()


def hangs_after_reporting(_: str = "") -> int:
    import atexit

    atexit.register(_sleep_for_ever)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "crash_on_import":
        raise ImportError("no module named deepspeed")
    sys.exit(run_rank(lambda: globals()[sys.argv[1]](*sys.argv[2:])))
