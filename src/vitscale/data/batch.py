"""MicroBatch: what the loader hands to an engine for one forward and backward on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-step's samples on one rank, already on the device, augmented, normalised and mixed.

    images: (B, C, H, W) float32, normalised.
    targets: (B,) int64 class indices, or (B, num_classes) float32 soft targets when mixup or cutmix is on.
    weights: (B,) float32; 1 for a real sample (times its class weight where class weights are set), 0 for padding.
    draws: (B, D) float32 uniform in [0, 1) or None; row b holds the sample's drop-path draws, a pure function of
        (seed, update, position of the sample in the global batch), so that they do not depend on the world size.
    """

    images: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    draws: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    """All micro-steps of one update on one rank.

    micro_batches: the same number on every rank (sharded engines deadlock otherwise).
    num_samples: real samples of this update over ALL ranks; the engine divides by it.
    window: index of the update's data window, counted from 0 over the whole run.
    epoch: the epoch it belongs to.
    """

    micro_batches: tuple[MicroBatch, ...]
    num_samples: int
    window: int
    epoch: int
