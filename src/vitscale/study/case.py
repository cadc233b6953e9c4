"""Job and Outcome: one process group to run, and how it ended; and the two files by which they are handed over.

A job's folder holds payload.json (parent to ranks), result.json (rank 0 to parent, written whole or not at all) and
each rank's stderr. What a payload means is the worker module's business. Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitscale.results.files import write_json

PAYLOAD_FILE = "payload.json"
RESULT_FILE = "result.json"

OutcomeKind = Literal["ok", "oom", "timeout", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class Job:
    """One fresh process group. The worker runs as `python -m module FOLDER` on `nproc` ranks.

    name: also the folder's name below the runner's. skip_reason: if given, nothing is started. hang_s: the worker has
    a heartbeat (study.heartbeat), and silence longer than this, and than ten updates, is a hang.
    """

    name: str
    module: str
    payload: Mapping[str, Any]
    nproc: int = 1
    timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    skip_reason: str | None = None
    hang_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. A failure is a result: it names its cause and keeps the end of that rank's stderr.

    code: the exit code the group ended with; None for skipped and timeout. result: what rank 0 saved, for kind ok
    and for a worker that saved it and then reported a failed check (code 1).
    """

    kind: OutcomeKind
    code: int | None = None
    rank: int | None = None
    sentence: str | None = None
    stderr_tail: str = ""
    result: dict[str, Any] | None = None
    seconds: float = 0.0


def save_payload(folder: Path, payload: Mapping[str, Any]) -> None:
    """Write what the ranks are to read."""
    write_json(folder / PAYLOAD_FILE, payload)


def load_payload(folder: Path) -> dict[str, Any]:
    """Read the payload, in a rank."""
    payload: dict[str, Any] = json.loads((folder / PAYLOAD_FILE).read_text())
    return payload


def save_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the result; rank 0 calls it once, at its end."""
    write_json(folder / RESULT_FILE, result)


def load_result(folder: Path) -> dict[str, Any] | None:
    """Read the result; None if rank 0 saved none."""
    try:
        result: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text())
    except FileNotFoundError:
        return None
    return result
