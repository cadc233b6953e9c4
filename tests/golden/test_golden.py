"""Golden losses: the first 10 updates of the digits recipe are what they were (digits_losses.py writes them anew)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from digits_losses import UPDATES, digits_losses

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "digits.json").read_text())
TOLERANCE = 1e-5  # measured: 2e-7 between instruction sets, thread counts and accumulation 1, 2, 4


def difference(losses: list[float]) -> float:
    assert len(losses) == len(GOLDEN["losses"]) == UPDATES
    return max(abs(a - b) / b for a, b in zip(losses, GOLDEN["losses"], strict=True))


def test_training_has_not_changed() -> None:
    found = difference(digits_losses())
    assert found < TOLERANCE, f"written with torch {GOLDEN['torch']}, this is {torch.__version__}; see digits_losses.py"


def test_accumulation_does_not_change_it() -> None:
    assert difference(digits_losses("train.grad_accum_steps=2")) < TOLERANCE


@pytest.mark.parametrize("change", ["optim.lr=3.03e-3", "train.label_smoothing=1e-4"])
def test_a_small_change_is_seen(change: str) -> None:
    assert difference(digits_losses(change)) > TOLERANCE
