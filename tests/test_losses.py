"""losses: per-sample, in fp32, hard and soft targets alike."""

from __future__ import annotations

import pytest
import torch

from vitscale.config.run import TrainConfig
from vitscale.losses import build_loss

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0]])
TARGETS = torch.tensor([0, 1])


def test_one_loss_per_sample() -> None:
    losses = build_loss(TrainConfig(epochs=1))(LOGITS, TARGETS)
    torch.testing.assert_close(losses, -LOGITS.log_softmax(1)[[0, 1], TARGETS])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_equal_hard_ones(smoothing: float) -> None:
    loss = build_loss(TrainConfig(epochs=1, label_smoothing=smoothing))
    soft = torch.nn.functional.one_hot(TARGETS, 3).float()
    torch.testing.assert_close(loss(LOGITS, soft), loss(LOGITS, TARGETS))
    smooth = soft * (1 - smoothing) + smoothing / 3
    torch.testing.assert_close(loss(LOGITS, soft), -(smooth * LOGITS.log_softmax(1)).sum(1))


def test_half_precision_logits_are_lifted_and_fp64_stays() -> None:
    loss = build_loss(TrainConfig(epochs=1))
    assert loss(LOGITS.bfloat16(), TARGETS).dtype == torch.float32
    assert loss(LOGITS.double(), TARGETS).dtype == torch.float64
    assert loss(LOGITS.double(), torch.eye(3)[TARGETS]).dtype == torch.float64
