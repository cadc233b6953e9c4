"""Files that exist whole or not at all. Torch-free."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitscale.errors import OutputError, RunFailed


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to: it becomes `path` at the end, or is deleted if anything fails.

    An OSError on the way names `path`: a full disk has no file name of its own.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write the whole text, or leave the old file, whatever happens on the way."""
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def output_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn an OSError of writing `path`, or below it, into one sentence. advice: what to do instead."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"the disk is full while writing {where}; free some space and run the same command again"
            ) from None
        raise OutputError(f"cannot write {where} ({error.strerror or error}); {advice}") from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")
