"""The learning rate of every update, as pure functions of the config; nothing here holds state or imports torch.

Updates are applied optimizer steps, counted from 0. A resumed run needs only the update's number.
"""

from __future__ import annotations

import math

from vitscale.config.run import OptimConfig
from vitscale.errors import ConfigError


def peak_lr(config: OptimConfig, global_batch_size: int) -> float:
    """optim.lr after the scaling rule: x batch ratio (linear), x its root (sqrt), or as it is (none)."""
    if config.min_lr > config.lr:
        raise ConfigError(f"optim.min_lr={config.min_lr} is above optim.lr={config.lr}; a schedule can only fall to it")
    ratio = global_batch_size / config.base_global_batch
    return config.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]


def lr_factor(config: OptimConfig, update: int, total_updates: int) -> float:
    """What update number `update` multiplies the peak by.

    Warm-up rises in equal steps from 1 / (warmup_updates + 1), never 0, to 1 at update number warmup_updates. Then
    cosine and linear fall, and would reach min_lr / lr at update number total_updates, one after the last. min_lr is
    thus scaled with the batch as lr is.
    """
    warmup = config.warmup_updates
    if update < warmup:
        return (update + 1) / (warmup + 1)
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (update - warmup) / max(1, total_updates - warmup))
    left = 1.0 - progress if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    floor = config.min_lr / config.lr
    return floor + (1.0 - floor) * left


def learning_rate(config: OptimConfig, update: int, total_updates: int, global_batch_size: int) -> float:
    """The learning rate of update number `update`, before layer-wise factors."""
    return peak_lr(config, global_batch_size) * lr_factor(config, update, total_updates)
