"""What a rank leaves behind when it ends: one small status file, and the sentence that a person gets to read.

In: an exception. Out: a `Failure` (exit code, sentence, kind), written as JSON where the parent finds it, because
process exit codes are lost under torchrun and at aborts. Torch-free: torch's errors are known by name and text.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from vitscale.errors import EXIT_INTERRUPTED, EXIT_RUN_FAILED, RunFailed, VitscaleError

Kind = Literal["returned", "named", "oom", "unknown", "peer", "interrupted"]

OOM_SENTENCE = (
    "out of {where} memory; lower train.micro_batch_size, or set performance.checkpointing=true to recompute "
    "activations ({detail})"
)

# Lower-case pieces of messages, as torch 2.14 and its libraries word them.
_OOM_TEXTS = (
    "cuda out of memory",
    "hip out of memory",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
)
# The last two are torch.save's words for a write that came up short.
_DISK_TEXTS = ("no space left on device", "disk quota exceeded", "unexpected pos", "pytorchstreamwriter failed writing")
# A rank that fails because another one has gone: its error is a consequence and never the one to show.
_PEER_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "ncclremoteerror",
    "nccl communicator was aborted",
    "application timeout caused pair closure",
    "timed out waiting",
    "socket timeout",
    "failed to recv",
    "gloo connectfullmesh failed",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank ended. kind 'returned' is an orderly end with any code; `time` is the wall clock, for ordering."""

    code: int
    sentence: str | None
    kind: Kind
    time: float


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what caused it, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _is_oom(error: BaseException) -> bool:
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(piece in text for piece in _OOM_TEXTS)
    )


def is_disk_full(error: BaseException) -> bool:
    """Whether the error is one of a disk or a quota that has no room left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(piece in str(error).lower() for piece in _DISK_TEXTS)


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return 'Type: first line of the message', cut to `limit` characters."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def as_named(error: BaseException, *, resumes: bool = True) -> VitscaleError | None:
    """Return the named error that `error` amounts to, or None if it is not one that vitscale knows.

    resumes: whether the command, run again, goes on where it was.
    """
    if isinstance(error, VitscaleError):
        return error
    for link in _chain(error):
        if _is_oom(link):
            on_device = "cuda" in str(link).lower() or type(link).__name__ == "OutOfMemoryError"
            return RunFailed(OOM_SENTENCE.format(where="device" if on_device else "host", detail=first_line(link, 120)))
        if is_disk_full(link):
            name = getattr(link, "filename", None)
            where = f" while writing {name}" if name else ""
            again = "run the same command again" + (" to resume" if resumes else "")
            return RunFailed(f"the disk is full{where}; free some space and {again}")
    return None


def describe(error: BaseException) -> Failure:
    """Turn any exception into what the parent must know."""
    if isinstance(error, KeyboardInterrupt):
        return Failure(EXIT_INTERRUPTED, "interrupted", "interrupted", time.time())
    named = as_named(error)
    if named is not None:
        kind: Kind = "oom" if not isinstance(error, VitscaleError) and str(named).startswith("out of ") else "named"
        return Failure(named.exit_code, str(named), kind, time.time())
    text = str(error).lower()
    kind = "peer" if any(piece in text for piece in _PEER_TEXTS) else "unknown"
    return Failure(EXIT_RUN_FAILED, first_line(error), kind, time.time())


def status_path(folder: Path, rank: int) -> Path:
    """Where rank `rank` leaves its status."""
    return folder / f"rank{rank}.json"


def write_status(folder: Path, rank: int, failure: Failure) -> None:
    """Write the status atomically; a full disk must not hide the error that is being reported."""
    path = status_path(folder, rank)
    partial = path.with_suffix(f".partial{os.getpid()}")
    try:
        partial.write_text(json.dumps(asdict(failure)))
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def read_status(folder: Path, rank: int) -> Failure | None:
    """Read a rank's status; None if it left none."""
    try:
        return Failure(**json.loads(status_path(folder, rank).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
