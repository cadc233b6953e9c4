"""ImageSet and Splits: what a source gives and a loader reads. No files, no augmentation.

An ImageSet is labels plus a way to read image i as uint8 (C, H, W). A set that fits into MEMORY_LIMIT_BYTES is
one uint8 tensor, which lets whole batches be gathered and augmented at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as tv

from vitscale.errors import DataError

MEMORY_LIMIT_BYTES = 2 * 2**30
SplitName = Literal["train", "val", "test"]


class ImageSet(Protocol):
    """The images of one split. labels: (n,) int64. pixels: uint8 (n, C, H, W) if held in memory, else None."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class of each image."""
        ...

    @property
    def pixels(self) -> torch.Tensor | None:
        """All images as one tensor, or None."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> torch.Tensor:
        """Image `index` as uint8 (C, H, W). Raises DataError, naming the image, if it cannot be read."""
        ...

    def name(self, index: int) -> str:
        """How to name image `index` to a person: a path, or a split and a number."""
        ...

    def subset(self, indices: NDArray[np.int64]) -> ImageSet:
        """The set of these images, in this order."""
        ...


@dataclass(frozen=True)
class MemoryImages:
    """Images held in memory. `numbers` are their places in the file they came from, for messages."""

    pixels: torch.Tensor
    labels: NDArray[np.int64]
    origin: str
    numbers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> torch.Tensor:
        """Image `index`, a view."""
        return self.pixels[index]

    def name(self, index: int) -> str:
        """Origin and index there."""
        return f"{self.origin}, index {index if self.numbers is None else self.numbers[index]}"

    def subset(self, indices: NDArray[np.int64]) -> MemoryImages:
        """A copy of these images."""
        numbers = indices if self.numbers is None else self.numbers[indices]
        return MemoryImages(self.pixels[torch.from_numpy(indices)], self.labels[indices], self.origin, numbers)


@dataclass(frozen=True)
class Splits:
    """A data set, ready for the loaders.

    classes: names in label order. mean, std: per channel of pixels in [0, 1], as the model shall see them
    normalised. notes: sentences to be said once, about what was dropped, split or assumed. val is the source's test
    split where it has no val split of its own and none was cut from train; test is None then.
    """

    train: ImageSet
    val: ImageSet
    test: ImageSet | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()

    def split(self, name: SplitName) -> ImageSet:
        """One split by name; DataError if the data set has no test split apart from val."""
        chosen: ImageSet | None = getattr(self, name)
        if chosen is None:
            raise DataError("this data set has no test split apart from val; use val, which is its held-out split")
        return chosen

    def with_notes(self, *notes: str) -> Splits:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def fit_channels(images: torch.Tensor, in_chans: int, origin: str) -> torch.Tensor:
    """uint8 (..., C, H, W) with the model's channels: grey is repeated, colour becomes luma (ITU-R 601)."""
    channels = images.shape[-3]
    if channels == in_chans:
        return images
    if channels == 1:
        return images.expand(*images.shape[:-3], in_chans, *images.shape[-2:]).contiguous()
    if channels == 3 and in_chans == 1:
        grey: torch.Tensor = tv.rgb_to_grayscale(images)
        return grey
    raise DataError(f"{origin} has {channels} channels but model.in_chans={in_chans}; set model.in_chans={channels}")


def check_labels(labels: NDArray[np.int64], num_classes: int, names: ImageSet, limit_of: str) -> None:
    """Raise DataError naming the first image whose label is not in 0..num_classes-1."""
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        first = int(bad[0])
        raise DataError(
            f"{names.name(first)}: label {labels[first]} is outside 0..{num_classes - 1}, the {num_classes} classes of "
            f"{limit_of} ({len(bad)} such image{'s' if len(bad) > 1 else ''})"
        )


def pixel_statistics(pixels: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel mean and std of (n, C, H, W) uint8 in [0, 1], rounded to 4 digits as such figures are published.

    Exact integer sums by histogram, so the result is the same on every machine.
    """
    means, stds = [], []
    levels = np.arange(256, dtype=np.float64) / 255
    for channel in range(pixels.shape[1]):
        counts = np.zeros(256, dtype=np.int64)
        for block in torch.split(pixels[:, channel], 4096):
            counts += np.bincount(block.reshape(-1).numpy(), minlength=256)
        share = counts / counts.sum()
        mean = float(share @ levels)
        means.append(round(mean, 4))
        stds.append(round(float(np.sqrt(share @ (levels - mean) ** 2)), 4))
    return tuple(means), tuple(stds)


def list_some(names: Sequence[str], limit: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
