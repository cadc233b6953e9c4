"""Sources that are arrays from the start: digits (inside scikit-learn), .npz files, synthetic images.

Out: RawSplits, before limits, held-out shares and checks, which sources.py applies to all sources alike.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitscale.data.draws import Purpose, uniform, words
from vitscale.data.images import MEMORY_LIMIT_BYTES, ImageSet, MemoryImages, fit_channels
from vitscale.errors import DataError

SPLIT_NAMES = ("train", "val", "test")
DIGITS_MEAN, DIGITS_STD = 0.3053, 0.3759  # of all 1,797 images
DEFAULT_SYNTHETIC_CLASSES = 10


@dataclass(frozen=True)
class RawSplits:
    """What a source holds. val, test: None where it has none. mean, std: None where they are to be computed."""

    train: ImageSet
    val: ImageSet | None
    test: ImageSet | None
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()


def digits(in_chans: int) -> RawSplits:
    """scikit-learn's 1,797 handwritten digits, 8x8, grey levels 0..16 spread over 0..255. One split."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    levels = np.rint(images.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    pixels = fit_channels(torch.from_numpy(levels), in_chans, "digits")
    train = MemoryImages(pixels, labels.astype(np.int64), "digits")
    names = tuple(str(digit) for digit in range(10))
    return RawSplits(train, None, None, names, (DIGITS_MEAN,) * in_chans, (DIGITS_STD,) * in_chans)


def npz(root: Path, in_chans: int) -> RawSplits:
    """An .npz of {split}_images (n, H, W, C) or (n, H, W) uint8, {split}_labels (n,) and, maybe, classes."""
    if not root.is_file():
        raise DataError(f"data.root={root} is not a file; data.source=npz needs one .npz file")
    if not zipfile.is_zipfile(root):
        raise DataError(f"{root} cannot be read as an .npz: it is another kind of file; write it with np.savez")
    try:
        # Opened here, because np.load leaves a broken file open.
        with root.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            splits = {s: _npz_split(arrays, s, root, in_chans) for s in SPLIT_NAMES if f"{s}_images" in arrays.files}
            classes = tuple(str(name) for name in arrays["classes"]) if "classes" in arrays.files else ()
            keys = list(arrays.files)
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, TypeError) as error:
        raise DataError(
            f"{root} cannot be read as an .npz of plain arrays ({_why(error)}); write it again with np.savez"
        ) from None
    if "train" not in splits:
        raise DataError(
            f"{root} has no train_images; it holds {', '.join(keys)}, but needs train_images and train_labels"
        )
    if not classes:
        classes = tuple(str(label) for label in range(int(splits["train"].labels.max(initial=0)) + 1))
    return RawSplits(splits["train"], splits.get("val"), splits.get("test"), classes)


def _why(error: Exception) -> str:
    if "allow_pickle" in str(error):  # numpy's own text advises to allow it
        return "it holds pickled objects, which can run code"
    return str(error)


def _npz_split(arrays: np.lib.npyio.NpzFile, split: str, root: Path, in_chans: int) -> MemoryImages:
    if f"{split}_labels" not in arrays.files:
        raise DataError(f"{root} has {split}_images but no {split}_labels")
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{root}: {split}_images must be uint8 of shape (n, height, width, channels), not {images.dtype} of shape "
            f"{images.shape}"
        )
    if labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{root}: {split}_labels must be {len(images)} integers, one per image, not {labels.dtype} of shape "
            f"{labels.shape}"
        )
    return from_nhwc(images if images.ndim == 4 else images[..., None], labels, f"{root} {split}", in_chans)


def from_nhwc(images: NDArray[np.uint8], labels: NDArray[np.integer], origin: str, in_chans: int) -> MemoryImages:
    """A MemoryImages of (n, H, W, C) uint8 pixels, with the model's channels."""
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    return MemoryImages(fit_channels(pixels, in_chans, origin), labels.astype(np.int64), origin)


class SyntheticImages:
    """Images made on demand from (seed, index): half a coarse pattern of the class, half noise, so that a model can
    learn them. `numbers` counts them over all splits, which keeps the splits apart."""

    pixels = None

    def __init__(self, numbers: NDArray[np.int64], size: tuple[int, int, int], num_classes: int, seed: int) -> None:
        self.numbers = numbers
        self.labels = numbers % num_classes
        self.size = size
        self.num_classes = num_classes
        self.seed = seed

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> torch.Tensor:
        """Image `index`, made now."""
        channels, height, width = self.size
        count = channels * height * width
        raw = words(self.seed, Purpose.SYNTHETIC_IMAGE, int(self.numbers[index]), -(-count // 8))
        noise = raw.view(np.uint8)[:count].reshape(self.size)
        pattern = self._pattern(int(self.labels[index]))
        return torch.from_numpy((noise >> 1) + pattern)

    def _pattern(self, label: int) -> NDArray[np.uint8]:
        """4x4 levels of 0..127 stretched over the image."""
        channels, height, width = self.size
        coarse = (uniform(self.seed, Purpose.SYNTHETIC_PATTERN, label, (channels, 4, 4)) * 128).astype(np.uint8)
        return coarse[:, np.arange(height) * 4 // height][:, :, np.arange(width) * 4 // width]

    def name(self, index: int) -> str:
        """Its number."""
        return f"synthetic image {self.numbers[index]}"

    def subset(self, indices: NDArray[np.int64]) -> SyntheticImages:
        """The set of these images."""
        return SyntheticImages(self.numbers[indices], self.size, self.num_classes, self.seed)


def synthetic(num_images: int, img_size: int, in_chans: int, num_classes: int | None, seed: int) -> RawSplits:
    """`num_images` for training and a quarter as many more for val, made in memory if they fit."""
    classes = num_classes or DEFAULT_SYNTHETIC_CLASSES
    size = (in_chans, img_size, img_size)
    shown = min(classes, num_images)  # with fewer images than classes, val must not have a class unknown to train
    numbers = np.arange(num_images + max(num_images // 4, shown))
    train = SyntheticImages(numbers[:num_images], size, shown, seed)
    val = SyntheticImages(numbers[num_images:], size, shown, seed)
    names = tuple(f"class{label}" for label in range(classes))
    half = (0.5,) * in_chans
    return RawSplits(_in_memory(train), _in_memory(val), None, names, half, (0.25,) * in_chans)


def _in_memory(images: SyntheticImages) -> ImageSet:
    if len(images) * int(np.prod(images.size)) > MEMORY_LIMIT_BYTES:
        return images
    pixels = torch.stack([images.read(index) for index in range(len(images))])
    return MemoryImages(pixels, images.labels, "synthetic", images.numbers)
