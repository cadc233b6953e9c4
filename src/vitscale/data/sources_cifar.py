"""CIFAR-10 and CIFAR-100 from the published Python pickles, through torchvision.

A pickle can run code, so no file is opened unless its MD5 is the published one (torchvision's list).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from vitscale.data.images import pixel_statistics
from vitscale.data.sources_memory import RawSplits, from_nhwc
from vitscale.errors import DataError

# Mean and std of the training images, as commonly published.
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def cifar(name: Literal["cifar10", "cifar100"], root: Path, in_chans: int, download: bool) -> RawSplits:
    """Open the set under `root`, which holds (or is) torchvision's folder; fetch it first if asked and missing."""
    kind = CIFAR10 if name == "cifar10" else CIFAR100
    if root.name == kind.base_folder:
        root = root.parent
    if download and not (root / kind.base_folder).is_dir():
        _download(kind, root)
    _check_md5(kind, root)
    splits = {}
    for split in ("train", "test"):
        stored = kind(root, train=split == "train")
        origin = f"{root / kind.base_folder} {split}"
        splits[split] = from_nhwc(stored.data, np.asarray(stored.targets), origin, in_chans)
    mean, std = STATISTICS[name] if in_chans == 3 else pixel_statistics(splits["train"].pixels)
    return RawSplits(splits["train"], None, splits["test"], tuple(stored.classes), mean, std)


def _check_md5(kind: type[CIFAR10], root: Path) -> None:
    folder = root / kind.base_folder
    if not folder.is_dir():
        raise DataError(f"data.root={root} has no folder {kind.base_folder}; set data.download=true to fetch it")
    files = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    for name, md5 in files:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; remove {folder} and set data.download=true to fetch it again")
        if not check_integrity(folder / name, md5):
            raise DataError(
                f"{folder / name} is not the published file (its MD5 differs) and was not opened; remove {folder} and "
                "set data.download=true to fetch it again"
            )


def _download(kind: type[CIFAR10], root: Path) -> None:
    """Fetch and unpack; the ranks of one machine take turns, and those that come later find it done."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root / f".{kind.base_folder}.lock"):
            if not (root / kind.base_folder).is_dir():
                kind(root, download=True)
    except (OSError, RuntimeError) as error:  # URLError is an OSError; torchvision raises RuntimeError for a bad MD5
        raise DataError(
            f"{kind.url} could not be fetched into {root} ({error}); fetch and unpack it there by hand"
        ) from None


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
