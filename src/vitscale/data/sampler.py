"""Which samples an update reads, in which order, and which of them a rank takes. Numpy only, no state.

An epoch is a permutation of the training set; its windows are consecutive slices of global_batch_size samples, one
per update. Windows are counted from 0 over the whole run, so that any of them can be asked for at any time: a
restart needs the number of the next window and nothing else. The order depends on neither the world size nor
the micro-batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitscale.data.draws import Purpose, permutation
from vitscale.errors import ConfigError


class Window(NamedTuple):
    """The samples of one update over all ranks: `indices` (R,) int64 into the training set, in global order."""

    window: int
    epoch: int
    indices: NDArray[np.int64]


class Sampler:
    """The order of a whole run. Keeps the permutation of the last epoch asked for."""

    def __init__(self, num_samples: int, global_batch_size: int, seed: int, drop_last: bool = False) -> None:
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        full, rest = divmod(num_samples, global_batch_size)
        self.updates_per_epoch = full if drop_last or not rest else full + 1
        self.left_over = rest
        if self.updates_per_epoch == 0:
            raise ConfigError(
                f"data.drop_last=true leaves no update: the training set has {num_samples} images and "
                f"global_batch_size is {global_batch_size}; lower it or set data.drop_last=false"
            )
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def window(self, window: int) -> Window:
        """The samples of window number `window`, counted from 0 over the run; an epoch's last may be shorter."""
        epoch, place = divmod(window, self.updates_per_epoch)
        if epoch != self._epoch:
            self._order = permutation(self.seed, Purpose.ORDER, epoch, self.num_samples)
            self._epoch = epoch
        start = place * self.global_batch_size
        return Window(window, epoch, self._order[start : start + self.global_batch_size])


def share(num_real: int, rank: int, sizes: Sequence[int], unit: int = 1) -> list[tuple[int, int]]:
    """The ranges (start, stop) of positions 0..num_real that `rank` takes, one per micro-step.

    sizes: images of a micro-step by rank. The same number of ranges on every rank; whole units (the last unit may be
    short); each rank's images are in proportion to its size, to within a unit, so that none has more full micro-steps
    than the others. Micro-steps are filled one after the other, so that few new batch shapes arise. A micro-step
    without samples is (x, x), and x is a position inside, since the last rank is never the short one: it runs one
    image of weight 0.
    """
    odd = next((size for size in sizes if size % unit), None)
    if odd is not None:
        raise ConfigError(
            f"data.mixup and data.cutmix mix pairs of images, so train.micro_batch_size={odd} must be even"
        )
    units, whole = -(-num_real // unit), sum(sizes)
    before = sum(sizes[:rank])
    num_steps = -(-units // (whole // unit))
    first = min(units * before // whole * unit, num_real)
    last = min(units * (before + sizes[rank]) // whole * unit, num_real)
    edges = [min(first + step * sizes[rank], last) for step in range(num_steps + 1)]
    return list(pairwise(edges))
