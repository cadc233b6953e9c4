"""The training loss: one cross entropy per sample, in fp32 whatever the model computes in.

In: logits and hard or soft targets. Out: per-sample losses. Not here: weights, padding and the division by the number
of samples of the update, which are the engine's; mixing of targets, which is data.mix's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from vitscale.config.run import TrainConfig

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_loss(train: TrainConfig) -> LossFn:
    """Return f(logits (B, K), targets (B,) int64 or (B, K) probabilities) -> losses (B,).

    Label smoothing is applied here, once, to hard and soft targets alike.
    """
    smoothing = train.label_smoothing

    def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if logits.dtype != torch.float64:  # fp64 stays: the proof of equality runs in it
            logits = logits.float()
        if targets.is_floating_point():
            targets = targets.to(logits.dtype)
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)

    return cross_entropy
