"""The batch identity: micro_batch_size x grad_accum_steps x data-parallel size = global_batch_size.

Two are given, the third follows; all three given must agree. Torch-free.
"""

from __future__ import annotations

from typing import NamedTuple

from vitscale.config.run import TrainConfig
from vitscale.errors import ConfigError

DEFAULT_MICRO_BATCH_SIZE = 32


class BatchTriple(NamedTuple):
    """A solved batch identity for one data-parallel size."""

    micro_batch_size: int
    grad_accum_steps: int
    global_batch_size: int


def solve_batch(train: TrainConfig, data_parallel_size: int) -> BatchTriple:
    """Solve the identity for `data_parallel_size` devices.

    With one or none of the three keys given, grad_accum_steps is 1 and micro_batch_size 32 where nothing else
    fixes them. Raises ConfigError, with the nearest valid triples, if the keys disagree or do not divide.
    """
    micro, accum, total = train.micro_batch_size, train.grad_accum_steps, train.global_batch_size
    size = data_parallel_size
    if total is None:
        micro = micro or DEFAULT_MICRO_BATCH_SIZE
        accum = accum or 1
        return BatchTriple(micro, accum, micro * accum * size)
    if micro is None and accum is None:
        accum = 1
    if micro is None:
        assert accum is not None
        micro = total // (accum * size)
    elif accum is None:
        accum = total // (micro * size)
    assert accum is not None
    if micro * accum * size != total:
        valid = ", ".join(str(tuple(t)) for t in nearest_triples(total, size, micro or 1, accum or 1))
        given = ", ".join(
            f"train.{name}={value}"
            for name in ("micro_batch_size", "grad_accum_steps", "global_batch_size")
            if (value := getattr(train, name)) is not None
        )
        raise ConfigError(
            f"{given} cannot hold on {size} device{'s' if size > 1 else ''}: micro_batch_size x grad_accum_steps x "
            f"{size} must equal global_batch_size; nearest valid (micro, accum, global): {valid}"
        )
    return BatchTriple(micro, accum, total)


def nearest_triples(total: int, size: int, micro: int, accum: int) -> list[BatchTriple]:
    """Up to three valid triples for `size` devices near the given values, nearest first.

    First those that keep the global batch (where `size` divides it), then those nearest to it that keep micro or
    accum.
    """
    per_device = total // size
    keep_total = []
    if per_device and total % size == 0:
        divisors = [d for d in range(1, per_device + 1) if per_device % d == 0]
        by_micro = sorted(divisors, key=lambda d: abs(d - micro))
        keep_total = [BatchTriple(d, per_device // d, total) for d in by_micro[:2]]
    steps, images = max(1, per_device // micro), max(1, per_device // accum)
    pairs = [(micro, accum), (micro, steps), (micro, steps + 1), (images, accum), (images + 1, accum)]
    others = [BatchTriple(m, a, m * a * size) for m, a in pairs]
    others.sort(key=lambda t: abs(t.global_batch_size - total))
    return list(dict.fromkeys([*keep_total, *others]))[:3]
