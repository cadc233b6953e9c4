"""Output that nobody reads any more does not end long work: `vitscale study mine.yaml | head -2` runs to its end."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Unheard(io.FileIO):
    """A file descriptor that becomes /dev/null when its reader has gone."""

    def write(self, data: ReadableBuffer, /) -> int:
        """As FileIO's, but for a broken pipe."""
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return super().write(data)


def go_on_unheard() -> None:
    """From here on, a stdout or stderr that closes swallows what is printed; the exit code is the command's own."""
    for name, real in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        stream = getattr(sys, name)
        if real is None or stream is not real:  # somebody has put their own in its place, or this was called before
            continue
        real.flush()
        binary = io.BufferedWriter(_Unheard(real.fileno(), "w", closefd=False))
        text = io.TextIOWrapper(binary, encoding=real.encoding, errors=real.errors, line_buffering=True)
        setattr(sys, name, text)
