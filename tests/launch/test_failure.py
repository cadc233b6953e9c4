"""Exceptions become the right code, kind and sentence; status files survive a round trip and damage."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vitscale.errors import ConfigError, RunFailed, Stopped
from vitscale.launch.failure import as_named, describe, read_status, status_path, write_status


class OutOfMemoryError(RuntimeError):
    """Named as torch names it."""


@pytest.mark.parametrize(
    ("error", "code", "kind", "words"),
    [
        (ConfigError("optim.lr must be positive"), 2, "named", "optim.lr must be positive"),
        (Stopped("stopped"), 75, "named", "stopped"),
        (OutOfMemoryError("CUDA out of memory. Tried"), 3, "oom", "out of device memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            3,
            "oom",
            "out of host memory",
        ),
        (MemoryError(), 3, "oom", "out of host memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 3, "named", "disk is full while writing /x/y"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 3, "named", "disk is full"),
        (
            RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
            3,
            "named",
            "disk is full",
        ),
        (RuntimeError("Connection closed by peer [127.0.0.1]:99"), 3, "peer", "RuntimeError: Connection"),
        (KeyError("a"), 3, "unknown", "KeyError: 'a'"),
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
    ],
)
def test_describe(error: BaseException, code: int, kind: str, words: str) -> None:
    failure = describe(error)
    assert (failure.code, failure.kind) == (code, kind)
    assert failure.sentence is not None
    assert words in failure.sentence


def test_the_cause_of_a_wrapped_error_is_found() -> None:
    wrapped = RuntimeError("writing the checkpoint failed")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert isinstance(as_named(wrapped), RunFailed)


def test_as_named_leaves_unknown_errors_alone() -> None:
    assert as_named(KeyError("a")) is None


def test_status_round_trip(tmp_path: Path) -> None:
    failure = describe(ConfigError("a sentence"))
    write_status(tmp_path, 3, failure)
    assert read_status(tmp_path, 3) == failure
    assert [path.name for path in tmp_path.iterdir()] == ["rank3.json"]


def test_no_status_or_a_damaged_one_is_none(tmp_path: Path) -> None:
    assert read_status(tmp_path, 0) is None
    status_path(tmp_path, 0).write_text('{"code": 2')
    assert read_status(tmp_path, 0) is None


def test_writing_to_a_missing_folder_hides_nothing(tmp_path: Path) -> None:
    write_status(tmp_path / "gone", 0, describe(ConfigError("a sentence")))
