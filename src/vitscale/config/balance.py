"""Weights become shares: how many images of each micro-step every rank takes, for devices of unequal speed. Torch-free.

In: weights by rank and the images of one micro-step over all ranks. Out: whole images by rank that sum to them, so that
the global batch, and with it the update, stays what it is without balance. How weights are found is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from vitscale.errors import ConfigError


def divide(weights: Sequence[float], total: int, unit: int = 1) -> tuple[int, ...]:
    """`total` images in proportion to the weights, in whole units, by largest remainder; every rank has at least one
    unit, taken from the rank with the most. Exact arithmetic: all ranks come to the same shares."""
    units = total // unit
    assert total % unit == 0, f"{total} images are not whole units of {unit}"
    assert len(weights) <= units, f"{units} units for {len(weights)} ranks"
    whole = sum(map(Fraction, weights))
    quotas = [Fraction(weight) * units / whole for weight in weights]
    shares = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda rank: (shares[rank] - quotas[rank], rank))
    for rank in by_remainder[: units - sum(shares)]:
        shares[rank] += 1
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return tuple(share * unit for share in shares)


def fixed_shares(weights: Sequence[float], micro_batch_size: int, world_size: int, unit: int) -> tuple[int, ...]:
    """The shares of weights that a person gave; ConfigError where a rank is missing or would have no image."""
    if len(weights) != world_size:
        raise ConfigError(
            f"parallel.balance has {_count(len(weights), 'weight')} for {_count(world_size, 'process', 'es')}; give "
            "one per process, in the order of the ranks, or auto"
        )
    total = micro_batch_size * world_size
    for rank, weight in enumerate(weights):
        quota = weight / sum(weights) * total
        if quota < unit / 2:
            raise ConfigError(
                f"parallel.balance leaves rank {rank} {quota:.2g} of the {total} images of a micro-step, which is "
                "none; raise its weight or train.micro_batch_size, or leave its device out"
            )
    return divide(weights, total, unit)


def check_weights(weights: Sequence[float]) -> None:
    """What can be said of weights alone; ValueError, for pydantic to carry."""
    for rank, weight in enumerate(weights):
        if weight < 0:
            raise ValueError(f"parallel.balance gives rank {rank} the weight {weight:g}; a weight is a number above 0")
    if not sum(weights):
        raise ValueError("the weights of parallel.balance sum to nothing; give each rank a number above 0, or auto")
    if 0 in weights:
        raise ValueError(
            f"parallel.balance gives rank {list(weights).index(0)} the weight 0, which leaves it no image; leave its "
            "device out, or give it a number above 0"
        )


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" + ("" if number == 1 else plural)
