"""engine.graph: which updates are captured and replayed. That a replay is right is proved on a GPU (tests/gpu)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitscale.data.batch import MicroBatch
from vitscale.engine.graph import GraphedUpdate


def micros(count: int, size: int = 4) -> tuple[MicroBatch, ...]:
    micro = MicroBatch(torch.zeros(size, 1, 2, 2), torch.zeros(size, dtype=torch.long), torch.ones(size))
    return (micro,) * count


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a GraphedUpdate does, in order, without a GPU."""
    told: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: told.append(name) or name

    for name in ("_aside", "_capture", "_replay"):
        monkeypatch.setattr(GraphedUpdate, name, note(name.removeprefix("_")))
    return told


def run(*counts: int, warmup: int = 2) -> None:
    update = GraphedUpdate(None, None, warmup)  # type: ignore[arg-type]
    for count in counts:
        update(micros(count), 0.5)


def test_it_is_captured_once_after_the_warm_up(calls: list[str]) -> None:
    run(2, 2, 2, 2)
    assert calls == ["aside", "aside", "capture", "replay", "replay"]


def test_fewer_micro_steps_than_usual_run_uncaptured_and_do_not_count_as_warm_up(calls: list[str]) -> None:
    run(2, 1, 2, 2, 1, 2)
    assert calls == ["aside", "aside", "aside", "capture", "replay", "aside", "replay"]


def test_a_run_that_begins_with_a_short_update_captures_the_whole_ones(calls: list[str]) -> None:
    run(1, 2, 2, 2, 2, 1)
    assert calls == ["aside", "aside", "aside", "capture", "replay", "replay", "aside"]
