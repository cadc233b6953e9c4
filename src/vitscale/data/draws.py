"""Keyed random numbers: every draw of training data is a pure function of (seed, purpose, number of the draw).

Not a generator with state: nothing here is saved or restored. In: the seed and, say, a window's number. Out: numpy
arrays. Raw Philox words are turned into numbers here, so that the values do not change with numpy's version; the
Beta draws alone use numpy's own sampler.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What a stream is for; two purposes never share numbers. The values are part of what a seed means."""

    ORDER = 1
    CROP_FLIP = 2
    WORKER = 3
    MIX = 4
    MIXUP_LAMBDA = 5
    CUTMIX_LAMBDA = 6
    DROP_PATH = 7
    SYNTHETIC_PATTERN = 8
    SYNTHETIC_IMAGE = 9
    SPLIT = 10
    RANDAUGMENT = 11
    ERASING = 12


def _philox(seed: int, purpose: Purpose, number: int) -> np.random.Philox:
    return np.random.Philox(np.random.SeedSequence((seed, int(purpose), number)))


def words(seed: int, purpose: Purpose, number: int, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit words."""
    return np.asarray(_philox(seed, purpose, number).random_raw(count), dtype=np.uint64)


def uniform(seed: int, purpose: Purpose, number: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers in [0, 1) with 24 random bits, which float32 holds exactly (rounding 53 bits could give 1.0)."""
    raw = words(seed, purpose, number, int(np.prod(shape)))
    return ((raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def permutation(seed: int, purpose: Purpose, number: int, count: int) -> NDArray[np.int64]:
    """A random order of 0..count-1: the order of `count` random words."""
    return np.argsort(words(seed, purpose, number, count), kind="stable").astype(np.int64)


def beta(seed: int, purpose: Purpose, number: int, alpha: float, count: int) -> NDArray[np.float32]:
    """`count` draws from Beta(alpha, alpha)."""
    generator = np.random.Generator(_philox(seed, purpose, number))
    return generator.beta(alpha, alpha, size=count).astype(np.float32)
