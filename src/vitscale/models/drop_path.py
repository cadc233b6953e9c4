"""Drop path (stochastic depth) whose randomness is given from outside instead of drawn by the layer.

timm's DropPath draws from torch's global generator, so which sample is dropped depends on the rank and on the
micro-batch split. KeyedDropPath takes uniform draws that belong to the sample. In: draws (B, D) of one micro-batch,
set by the engine before forward. Out: the same formula as timm's. Not here: where draws come from (data.sampler).

The masks stay set until the next `set_draws`, so that a recomputed forward (activation checkpointing) sees them too.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from timm.layers import DropPath
from torch import nn


class KeyedDropPath(nn.Module):
    """Scales each sample's residual branch by 0 or 1 / keep, as its draw says; the identity in eval mode."""

    scale: torch.Tensor | None  # (B,) float32; no buffer: it must not enter state_dict or be broadcast by DDP

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob
        self.scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, ...) to (B, ...)."""
        if not self.training:
            return x
        assert self.scale is not None, "set_draws(model, draws) must come before forward in training mode"
        return x * self.scale.to(x.dtype).view(-1, *(1,) * (x.ndim - 1))

    def extra_repr(self) -> str:
        """Show the rate in print(model)."""
        return f"drop_prob={self.drop_prob:.3f}"


def replace_drop_path(model: nn.Module) -> None:
    """Replace every timm DropPath inside `model`, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, DropPath):
                setattr(module, name, KeyedDropPath(child.drop_prob))


def num_draws(model: nn.Module) -> int:
    """Number of draws D that each sample needs: one per residual branch that can be dropped."""
    return len(_drop_paths(model))


def set_draws(model: nn.Module, draws: torch.Tensor | None) -> None:
    """Set the draws (B, D), uniform in [0, 1), of the next forward in training mode; None clears them.

    Wrappers around the model (DDP, torch.compile, FSDP2) are looked through. A sample is kept where its draw is
    below 1 - drop_prob. All masks are made by three small kernels here, not by two per layer in forward.
    """
    layers = _drop_paths(model)
    if draws is None or not layers:
        for layer in layers:
            layer.scale = None
        return
    assert draws.shape[1:] == (len(layers),), f"draws {tuple(draws.shape)} for {len(layers)} layers"
    keep = _keep(tuple(layer.drop_prob for layer in layers), draws.device)
    scales = (draws.t() < keep) / keep  # (D, B): contiguous rows, so that every layer sees the same strides
    for layer, scale in zip(layers, scales.unbind(0), strict=True):
        layer.scale = scale


@lru_cache(maxsize=8)
def _keep(drop_probs: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Probabilities of being kept, (D, 1). Made once: a CUDA graph cannot copy from the host."""
    return torch.tensor([1.0 - p for p in drop_probs], dtype=torch.float32, device=device).unsqueeze(1)


def _drop_paths(model: nn.Module) -> list[KeyedDropPath]:
    return [module for module in model.modules() if isinstance(module, KeyedDropPath)]
