"""Muon for many matrices at once: the update of torch.optim.Muon (Nesterov, sizes as AdamW's) in a few launches.

torch's own steps matrix by matrix, about forty launches each, and reads the learning rate on the host. Here matrices of
equal shape, and a ViT's blocks have four, go through the Newton-Schulz iteration as one batch, and the learning rate
may be a tensor on the device, so that a CUDA graph can hold the step. In: groups of matrices. Out: an optimizer whose
state is torch's, a `momentum_buffer` per matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from vitscale.optim.groups import ParamGroup

# Of the quintic iteration, as in torch and in the reference (github.com/KellerJordan/Muon).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Every parameter must be a matrix."""

    def __init__(self, groups: list[ParamGroup], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; nothing in it waits for the device."""
        assert closure is None, "the engines call backward themselves"
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._step(weights, group)
        return None

    def _step(self, weights: list[torch.Tensor], group: ParamGroup) -> None:
        lr, momentum = group["lr"], group["momentum"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        buffers = [self._buffer(weight) for weight in weights]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, buffers, momentum)
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        for shape in dict.fromkeys(weight.shape for weight in weights):
            places = [place for place, weight in enumerate(weights) if weight.shape == shape]
            steps = orthogonal(torch.stack([updates[place] for place in places])).to(weights[places[0]].dtype)
            # 0.2: the root mean square that AdamW's steps have (arXiv 2502.16982)
            steps = steps * (lr * (-0.2 * math.sqrt(max(shape))))
            torch._foreach_add_([weights[place] for place in places], list(steps.unbind()))

    def _buffer(self, weight: torch.Tensor) -> torch.Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: torch.Tensor = state["momentum_buffer"]
        return buffer


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """(L, m, n) -> bf16 (L, m, n) with the same singular vectors, and singular values of about 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)  # no singular value above 1
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
