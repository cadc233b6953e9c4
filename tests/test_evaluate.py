"""evaluate: closed-form figures, padding, unequal ranks, classes without samples."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitscale.data.batch import MicroBatch
from vitscale.errors import DataError
from vitscale.evaluate import EvalResult, evaluate

K = 7


def batch_of(targets: list[int], weights: list[float], seed: int) -> MicroBatch:
    """Images whose mean over pixels is read as logits by `forward`."""
    images = torch.randn(len(targets), K, 1, 1, generator=torch.Generator().manual_seed(seed))
    return MicroBatch(images, torch.tensor(targets), torch.tensor(weights))


def forward(images: torch.Tensor) -> torch.Tensor:
    return images.mean(dim=(2, 3))


BATCHES = [
    batch_of([0, 1, 2, 3], [1, 1, 1, 1], 0),
    batch_of([4, 5, 0, 1], [1, 1, 1, 1], 1),
    batch_of([2, 2, 3], [1, 0, 0], 2),  # short, and padded
]


def reference(batches: list[MicroBatch]) -> tuple[torch.Tensor, torch.Tensor]:
    real = [batch.weights > 0 for batch in batches]
    logits = torch.cat([forward(batch.images)[keep] for batch, keep in zip(batches, real, strict=True)])
    return logits, torch.cat([batch.targets[keep] for batch, keep in zip(batches, real, strict=True)])


def run(batches: list[MicroBatch]) -> EvalResult:
    result = evaluate(forward, batches, K)
    assert result is not None
    return result


def test_figures_equal_a_plain_reference_over_the_real_samples() -> None:
    logits, targets = reference(BATCHES)
    result = run(BATCHES)
    assert result.num_samples == len(targets) == 9
    assert result.top1 == pytest.approx((logits.argmax(1) == targets).float().mean().item())
    ranks = (logits > logits.gather(1, targets[:, None])).sum(1)
    assert result.top5 == pytest.approx((ranks < 5).float().mean().item())
    assert result.loss == pytest.approx(F.cross_entropy(logits.double(), targets).item(), rel=1e-12)
    expected = torch.zeros(K, K, dtype=torch.int64)
    for target, prediction in zip(targets.tolist(), logits.argmax(1).tolist(), strict=True):
        expected[target, prediction] += 1
    assert torch.equal(result.confusion, expected)


def test_a_class_without_samples_has_no_accuracy_rather_than_zero() -> None:
    result = run(BATCHES)
    assert result.per_class[6] is None
    logits, targets = reference(BATCHES)
    hits = (logits.argmax(1) == targets)[targets == 0]
    assert result.per_class[0] == pytest.approx(hits.float().mean().item())
    assert result.as_dict()["per_class"][6] is None


def test_ranks_of_unequal_size_give_the_same_figures_as_one() -> None:
    """Two ranks' sums, added up, equal one rank that saw everything; a mean of the ranks' means would not."""
    parts = [BATCHES[:2], BATCHES[2:]]
    stored: list[list[torch.Tensor]] = []
    for part in parts:
        seen: list[torch.Tensor] = []
        evaluate(forward, part, K, reduce=lambda tensor, seen=seen: seen.append(tensor.clone()) or tensor)
        stored.append(seen)
    totals = iter([first + second for first, second in zip(*stored, strict=True)])
    both = evaluate(forward, parts[0], K, reduce=lambda _: next(totals))
    whole = run(BATCHES)
    assert both is not None
    assert both.row() == pytest.approx(whole.row())
    assert torch.equal(both.confusion, whole.confusion)
    assert whole.top1 != pytest.approx((run(parts[0]).top1 + run(parts[1]).top1) / 2)


def test_fewer_than_five_classes() -> None:
    result = evaluate(lambda images: images.mean((2, 3))[:, :3], [batch_of([0, 1, 2], [1, 1, 1], 0)], 3)
    assert result is not None
    assert result.top5 == 1.0


def test_padding_that_is_not_finite_does_not_reach_the_loss() -> None:
    images = torch.zeros(2, K, 1, 1)
    images[1] = float("nan")
    result = run([MicroBatch(images, torch.tensor([0, 0]), torch.tensor([1.0, 0.0]))])
    assert result.loss == pytest.approx(torch.tensor(K).log().item())


def test_should_stop_is_asked_before_every_batch() -> None:
    answers = iter([False, True])
    assert evaluate(forward, BATCHES, K, should_stop=lambda: next(answers)) is None


def test_nothing_to_evaluate_is_said() -> None:
    for batches in ([], [batch_of([0], [0], 0)]):
        with pytest.raises(DataError, match="no image to evaluate on"):
            evaluate(forward, batches, K)
