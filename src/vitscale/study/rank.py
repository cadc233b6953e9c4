"""One rank of a training that somebody watches: `python -m vitscale.study.rank --config FILE --out DIR`.

A rank that vitscale started beats for its parent, which ends the group when one hangs (cli.train_group). Under torchrun
and its like there is no such parent: there every rank looks at the beats of all ranks on its host and ends itself, with
the name of the one that is behind. Ranks on other hosts are not seen; they find the same from where they are.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vitscale.distributed import environment_ranks
from vitscale.errors import EXIT_RUN_FAILED, RunFolderError
from vitscale.launch.child import STATUS_DIR, run_rank
from vitscale.launch.detect import OuterLaunch
from vitscale.phases import NULL, Recorder
from vitscale.study.heartbeat import HANG_S, Hang, HangWatch, Heartbeat, Watched

POLL_S = 0.5
OTHERS_S = 5.0  # the host's first rank speaks for all; the others wait for it, in case it is the one that hangs


def main(arguments: Sequence[str] | None = None) -> int:
    """One rank of a group of ours."""
    from vitscale.run import train_from_file

    parser = argparse.ArgumentParser(prog="vitscale.study.rank")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args(arguments)
    rank, _, _ = environment_ranks()
    recorder = Watched(NULL, Heartbeat(Path(os.environ[STATUS_DIR]), rank))
    return train_from_file(options.config, options.out, fresh=options.fresh, device=options.device, recorder=recorder)


@contextmanager
def watched_host(outer: OuterLaunch, hang_s: float = HANG_S) -> Iterator[Recorder]:
    """A recorder that beats for this host's ranks, while a thread watches the beats of all of them."""
    folder = _meeting_place()
    recorder = Watched(NULL, Heartbeat(folder, outer.local_rank))
    watch = _HostWatch(HangWatch(folder, outer.local_world_size, hang_s=hang_s), outer)
    watch.start()
    try:
        yield recorder
    finally:
        watch.stopped.set()
        if outer.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _meeting_place() -> Path:
    """A folder that all ranks which one launcher started on this host find by themselves, anew at each restart."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder = Path(tempfile.gettempdir()) / f"vitscale-{os.getuid()}-{os.getppid()}-{attempt}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunFolderError(f"{folder} belongs to somebody else; remove it, or set TMPDIR to a folder of your own")
    return folder


class _HostWatch(threading.Thread):
    """Ends this process when a rank of this host hangs."""

    def __init__(self, watch: HangWatch, outer: OuterLaunch, end: Callable[[str | None], None] | None = None) -> None:
        super().__init__(name="host-watch", daemon=True)
        self._watch, self._outer = watch, outer
        self._end = end or _end
        self.stopped = threading.Event()

    def run(self) -> None:
        """Until the training is over."""
        while not self.stopped.wait(POLL_S):
            hang = self._watch.poll()
            if hang is not None:
                if self._outer.local_rank:
                    time.sleep(OTHERS_S)
                self._end(self.sentence(hang) if self._outer.local_rank == 0 or hang.rank == 0 else None)
                return

    def sentence(self, hang: Hang) -> str:
        """With the rank's number in the whole group."""
        outer = self._outer
        first = outer.rank - outer.local_rank
        told = Hang(first + hang.rank, hang.updates, hang.phase, hang.silent_s, hang.limit_s, hang.alone).sentence()
        if outer.world_size == outer.local_world_size:
            return told
        return f"{told}; ranks on other hosts cannot be seen from here: one of them, or the network, may be to blame"


def _end(sentence: str | None) -> None:
    """Say why and end at once: the main thread may never come back from where it is."""
    if sentence is not None:
        rank = os.environ.get("RANK", "0")
        with suppress(OSError, ValueError):
            print(f"error: [rank {rank}] {sentence}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    os._exit(EXIT_RUN_FAILED)


if __name__ == "__main__":
    sys.exit(run_rank(main))
