"""Exact evaluation: every sample counted once, sums over all ranks first, one division at the end.

In: a forward function, a loader's micro-batches (padding has weight 0) and a sum over ranks. Out: EvalResult. Means of
ranks or of batches are never averaged: they are wrong as soon as one batch is shorter. `evaluate_run` does it for the
checkpoint of a finished or running RUN, on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from vitscale.data.batch import MicroBatch
from vitscale.data.images import SplitName
from vitscale.data.loader import EvalLoader
from vitscale.data.sources import open_splits
from vitscale.errors import CheckpointError, DataError
from vitscale.models.build import image_size
from vitscale.trained import Trained

Forward = Callable[[torch.Tensor], torch.Tensor]
"""(B, C, H, W) images -> (B, num_classes) logits, in eval mode and without gradients."""

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""The tensor summed over all ranks; may work in place."""

MICRO_BATCH_SIZE = 64  # where neither eval.micro_batch_size nor train.micro_batch_size says


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What an evaluation found; shares are in [0, 1].

    per_class: accuracy of each class, None for a class without samples.
    confusion: (K, K) int64 on the CPU; row = true class, column = predicted class.
    """

    top1: float
    top5: float
    loss: float
    num_samples: int
    per_class: tuple[float | None, ...]
    confusion: torch.Tensor

    def row(self) -> dict[str, float]:
        """The single numbers, as observers take them."""
        return {"top1": self.top1, "top5": self.top5, "loss": self.loss, "num_samples": self.num_samples}

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        return {**self.row(), "per_class": list(self.per_class), "confusion": self.confusion.tolist()}


def evaluate(
    forward: Forward,
    loader: Iterable[MicroBatch],
    num_classes: int,
    *,
    reduce: Reduce = lambda tensor: tensor,
    should_stop: Callable[[], bool] | None = None,
) -> EvalResult | None:
    """Evaluate over all ranks; None if `should_stop` said so before a batch.

    Collective: every rank must see the same number of batches, and `should_stop` must answer alike on all of them.
    Top-5 is top-K where there are fewer than five classes. The loss is plain cross entropy: no label smoothing and no
    class weights, so that it can be compared between runs.
    """
    sums = _Sums(num_classes)
    for batch in loader:
        if should_stop is not None and should_stop():
            return None
        sums.add(forward(batch.images), batch.targets, batch.weights > 0)
    return sums.result(reduce)


def evaluate_run(
    trained: Trained, split: SplitName, device: torch.device, micro_batch_size: int | None = None
) -> EvalResult:
    """Evaluate a trained model on a split of its own data set, in fp32 on one device."""
    config = trained.config
    size = image_size(trained.model)
    splits = open_splits(
        config.data,
        img_size=size,
        in_chans=config.model.in_chans,
        num_classes=len(trained.classes),
        seed=config.train.seed,
    )
    if splits.classes != trained.classes[: len(splits.classes)]:
        raise CheckpointError(
            f"{trained.checkpoint} was trained on the classes {_some(trained.classes)}, but the data set now has "
            f"{_some(splits.classes)}"
        )
    micro = micro_batch_size or config.eval.micro_batch_size or config.train.micro_batch_size or MICRO_BATCH_SIZE
    loader = EvalLoader(
        splits.split(split),
        config,
        micro_batch_size=micro,
        img_size=size,
        mean=trained.mean,
        std=trained.std,
        rank=0,
        world_size=1,
        device=device,
    )
    result = evaluate(trained.forward_on(device), loader, len(trained.classes))
    assert result is not None
    return result


class _Sums:
    """Counts and the summed loss, on the device of the logits; no synchronisation with the host until the end."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.counts: torch.Tensor | None = None  # (K * K + 1,) int64: the confusion matrix, then top-5 hits
        self.loss: torch.Tensor | None = None  # () float64

    def add(self, logits: torch.Tensor, targets: torch.Tensor, real: torch.Tensor) -> None:
        """Add one batch: logits (B, K), targets (B,) int64, real (B,) bool."""
        size = self.num_classes
        if self.counts is None or self.loss is None:
            self.counts = torch.zeros(size * size + 1, dtype=torch.int64, device=logits.device)
            self.loss = torch.zeros((), dtype=torch.float64, device=logits.device)
        top = logits.topk(min(5, size), dim=1).indices  # (B, 5)
        hit5 = (top == targets.unsqueeze(1)).any(dim=1) & real
        # index_add_ and not bincount: the latter synchronises with the host on a GPU
        self.counts.index_add_(0, targets * size + top[:, 0], real.long())
        self.counts[-1] += hit5.sum()
        losses = F.cross_entropy(logits.double(), targets, reduction="none")
        self.loss += torch.where(real, losses, 0.0).sum()

    def result(self, reduce: Reduce) -> EvalResult:
        """Sum over ranks, then divide."""
        if self.counts is None or self.loss is None:
            raise DataError("there is no image to evaluate on; check the split and data.val_limit")
        counts, loss = reduce(self.counts).cpu(), reduce(self.loss).item()
        confusion = counts[:-1].view(self.num_classes, self.num_classes)
        total = int(confusion.sum())
        if total == 0:
            raise DataError("there is no image to evaluate on; check the split and data.val_limit")
        hits, sizes = confusion.diagonal().tolist(), confusion.sum(dim=1).tolist()
        per_class = tuple(hit / size if size else None for hit, size in zip(hits, sizes, strict=True))
        return EvalResult(sum(hits) / total, int(counts[-1]) / total, loss / total, total, per_class, confusion)


def _some(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:3])}, ... ({len(names)})"
