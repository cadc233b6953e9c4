"""The engine seam: the protocol that every engine fulfils, and what an update returns. No factory here.

DeepSpeed owns optimizer, accumulation boundary, clipping, loss scale and checkpoint; DDP and FSDP2 own none of
them, so the seam sits above all of these. An update is defined the same way for all: the loss function returns
one loss per sample; the engine weights them, divides by the number of real samples of the whole update over all
ranks, and applies one optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from vitscale.data.batch import UpdateBatch
from vitscale.engine.own_time import OwnTime

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(logits (B, K) float32, targets (B,) or (B, K)) -> per-sample losses (B,) float32."""

OptimizerState = dict[str, dict[str, torch.Tensor]]
"""timm parameter name -> state key (exp_avg, exp_avg_sq, momentum_buffer, ...) -> full tensor on the CPU."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one update returns. Nothing in it has been synchronised with the host, except `applied` under fp16.

    loss: () float32 on the device; this rank's share: the sum over ranks is the update's mean loss.
    grad_norm: () on the device, the norm over all ranks before clipping; None where the engine did not need it.
    applied: False if the optimizer step was skipped (fp16 overflow); True otherwise.
    """

    loss: torch.Tensor
    grad_norm: torch.Tensor | None
    applied: bool


class Engine(Protocol):
    """A model with its optimizer under one way of parallelism. One process runs one engine."""

    module: nn.Module  # the model as eval_forward runs it
    update: int  # applied updates so far
    notes: tuple[str, ...]  # sentences about what was chosen at the start, to be said once
    own_time: OwnTime  # this rank's own part of an update, where somebody asks

    def train_batch(self, batch: UpdateBatch) -> StepOutput:
        """Run all micro-steps and one optimizer step (learning rate of update number `self.update`, EMA included)."""
        ...

    def evaluating(self, *, ema: bool = False) -> AbstractContextManager[None]:
        """Eval mode without gradients, with the EMA weights in place if asked. Collective at both ends."""
        ...

    def eval_forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) float32 of (B, C, H, W) images, inside `evaluating`. Collective if sharded."""
        ...

    def learning_rate(self) -> float:
        """The learning rate that the next update will use (before layer-wise factors)."""
        ...

    def save(self, folder: Path) -> None:
        """Write this engine's state (model, optimizer, loss scale) under an existing empty folder. Collective."""
        ...

    def load(self, folder: Path) -> None:
        """Load what `save` wrote, also from another world size. Collective."""
        ...

    def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
        """Full parameters and buffers by timm's names on the CPU, fp32 masters where they exist.

        Collective; empty on ranks other than 0.
        """
        ...

    def load_ema(self, full: dict[str, torch.Tensor]) -> None:
        """Take this rank's part of a full average by timm's names, given on every rank."""
        ...

    def gathered_optimizer_state(self) -> OptimizerState:
        """Full optimizer state by timm's names. Collective; empty on ranks other than 0."""
        ...

    def close(self) -> None:
        """Release what the engine holds; the process group stays."""
        ...
