"""What is the same in every engine's update: counting, learning rate, dropout seeds, precision, the weighted loss.

Not here: who reduces, clips and steps; that is what engines differ in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.data.batch import MicroBatch
from vitscale.distributed import World
from vitscale.engine.base import LossFn
from vitscale.engine.own_time import OwnTime, waits_in_forward
from vitscale.models.drop_path import num_draws, set_draws
from vitscale.optim.schedule import lr_factor, peak_lr
from vitscale.parallel.apply import DTYPES
from vitscale.parallel.attention import attention_shape, choose, use
from vitscale.phases import NULL, Recorder


class UpdateRules:
    """The shared half of an engine; engines subclass it. `module` is what the forward calls."""

    module: nn.Module

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        config: RunConfig,
        decisions: Decisions,
        world: World,
        total_updates: int,
        recorder: Recorder = NULL,
    ) -> None:
        self.config = config
        self.decisions = decisions
        self.world = world
        self.recorder = recorder
        self.update = 0
        self._plain = model
        self._loss_fn = loss_fn
        self._total_updates = total_updates
        self._peak_lr = peak_lr(config.optim, decisions.batch.global_batch_size)
        self._dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
        self._drops_paths = num_draws(model) > 0
        tf32 = decisions.precision.compute == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32  # on by torch's default, so that fp32 would embed patches in TF32
        self.own_time = self._own_time(model)
        self.notes = self._set_attention(model)

    def _own_time(self, model: nn.Module) -> OwnTime:
        waits = waits_in_forward(self.decisions.engine, self.decisions.zero_stage)
        fast = self.decisions.fast
        possible = not fast.cuda_graph and not (waits and fast.compile)
        return OwnTime(self.world.device, model if waits else None, possible=possible)

    def _set_attention(self, model: nn.Module) -> tuple[str, ...]:
        """The same kernel on every rank; what to tell people of it."""
        asked = self.decisions.fast.attention
        if self.world.device.type != "cuda" or asked == "default":
            return ()
        compute, params, _ = self.decisions.precision
        dtype = DTYPES[compute if params == "fp32" else params]
        shape = attention_shape(model, self.decisions.batch.micro_batch_size)
        choice = self.world.on_main(lambda: choose(asked, shape, self.world.device, dtype))
        if choice is None:
            return ()
        use(choice.kernel)
        return (choice.why,)

    def learning_rate(self) -> float:
        """The learning rate that the next update will use, before layer-wise factors."""
        return self._peak_lr * lr_factor(self.config.optim, self.update, self._total_updates)

    def set_learning_rate(self, groups: Iterable[dict[str, Any]]) -> None:
        """Write this update's rate into an optimizer's parameter groups."""
        rate = self.learning_rate()
        for group in groups:
            value = rate * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def begin_update(self) -> None:
        """Training mode, and dropout's generator as a function of (seed, update, rank)."""
        if not self.module.training:  # walking through all modules takes the host a while
            self.module.train()
        if self._dropout:
            key = np.random.SeedSequence([self.config.train.seed, self.update, self.world.rank])
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> 1))

    def weighted_loss(self, micro: MicroBatch, scale: float | torch.Tensor) -> torch.Tensor:
        """Forward of one micro-batch: sum of weight x loss, times `scale` (or a () tensor of it); () float32."""
        with self.own_time.forward(len(micro.images)):
            logits = self.forward(micro.images, micro.draws)
        return (self._loss_fn(logits, micro.targets) * micro.weights).sum() * scale

    def forward(self, images: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
        """Logits in at least fp32, under this run's compute precision."""
        if self._drops_paths and self.module.training:
            set_draws(self._plain, draws)
        with self.autocast():
            logits: torch.Tensor = self.module(images.to(self._input_dtype()))
        return logits if logits.dtype == torch.float64 else logits.float()

    def autocast(self) -> AbstractContextManager[object]:
        """Autocast where compute is narrower than the weights."""
        compute, params, _ = self.decisions.precision
        if compute in ("bf16", "fp16") and params == "fp32":
            return torch.autocast(self.world.device.type, dtype=DTYPES[compute])
        return nullcontext()

    def _input_dtype(self) -> torch.dtype:
        params = self.decisions.precision.params
        if params == "fp32":
            return next(self._plain.parameters()).dtype  # fp32, or fp64 in the proof of equality
        return DTYPES[params]

    @contextmanager
    def evaluating(self, *, ema: bool = False) -> Iterator[None]:
        """Eval mode without gradients, with the EMA weights in place if asked. Collective at both ends."""
        self.module.eval()
        try:
            with torch.no_grad(), self._ema_in_place() if ema else nullcontext():
                yield
        finally:
            self.module.train()

    def eval_forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, num_classes) of (B, C, H, W) images, inside `evaluating`. Collective in sharded engines."""
        return self.forward(images, None)

    def _ema_in_place(self) -> AbstractContextManager[None]:
        raise NotImplementedError
