"""Exponential moving average of fp32 weights, kept by parameter name and sharded exactly as the weights are.

In: local fp32 tensors (shards, fragments or whole parameters). Out: tensors of the same shapes. Which part of a
parameter a tensor holds is the engine's business. A bf16 average at 0.9999 would never move, hence fp32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Ema:
    """average <- d x average + (1 - d) x weights, with d = min(decay, (1 + u) / (10 + u)) at update u."""

    def __init__(self, decay: float, weights: Mapping[str, torch.Tensor]) -> None:
        self.decay = decay
        self.average = {name: tensor.detach().clone() for name, tensor in weights.items()}

    @torch.no_grad()
    def follow(self, weights: Mapping[str, torch.Tensor], update: int) -> None:
        """Move towards `weights` after update number `update` (counted from 0)."""
        decay = min(self.decay, (1 + update) / (10 + update))
        average = list(self.average.values())
        if average:
            torch._foreach_lerp_(average, [weights[name].detach() for name in self.average], 1 - decay)
