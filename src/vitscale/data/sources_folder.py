"""Image folders: ROOT/train/CLASS/**/image and ROOT/val/CLASS/**/image, or ROOT/CLASS/**/image with a held-out share.

The class directories of train, sorted by name, are the classes; val (and test) must have the same ones. Images are
read when they are needed, never all at once. Listed class by class in turn, so that any prefix is balanced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitscale.data.decode import IMAGE_SUFFIXES, decode_image
from vitscale.data.images import list_some
from vitscale.data.sources_memory import RawSplits
from vitscale.errors import DataError

VAL_NAMES = ("val", "validation", "valid")


class FolderImages:
    """Image files, decoded on reading. Paths are one array of bytes: a list of a million strings would be copied into
    every worker process, page by page, as reference counts are touched."""

    pixels = None

    def __init__(self, folder: Path, paths: NDArray[np.bytes_], labels: NDArray[np.int64], in_chans: int) -> None:
        self.folder = folder
        self.paths = paths  # relative to folder
        self.labels = labels
        self.in_chans = in_chans

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> torch.Tensor:
        """Decode image `index`."""
        return decode_image(Path(self.name(index)), self.in_chans, self.name(index))

    def name(self, index: int) -> str:
        """Its path."""
        return os.path.join(self.folder, os.fsdecode(self.paths[index]))

    def subset(self, indices: NDArray[np.int64]) -> FolderImages:
        """The set of these images."""
        return FolderImages(self.folder, self.paths[indices], self.labels[indices], self.in_chans)


def folder(root: Path, in_chans: int) -> RawSplits:
    """Open an image folder."""
    if not root.is_dir():
        raise DataError(f"data.root={root} is not a folder; data.source=folder needs one folder per class under it")
    train_folder = root / "train" if (root / "train").is_dir() else root
    classes = _class_names(train_folder)
    notes: list[str] = []
    train = _list_images(train_folder, classes, in_chans, notes)
    val: FolderImages | None = None
    test: FolderImages | None = None
    if train_folder != root:
        val_folder = next((root / name for name in VAL_NAMES if (root / name).is_dir()), None)
        if val_folder is not None:
            val = _held_out(val_folder, classes, train_folder, in_chans, notes)
        if _has_classes(root / "test"):
            test = _held_out(root / "test", classes, train_folder, in_chans, notes)
    return RawSplits(train, val, test, classes, notes=tuple(notes))


def _has_classes(path: Path) -> bool:
    return path.is_dir() and any(entry.is_dir() for entry in path.iterdir())


def _class_names(path: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{path} has no class folders; put the images of each class into a folder of its own")
    return tuple(names)


def _held_out(path: Path, classes: Sequence[str], train_folder: Path, in_chans: int, notes: list[str]) -> FolderImages:
    """The images of val or test, by train's class numbers."""
    present = set(_class_names(path))
    for what, names in (("lacks", set(classes) - present), ("has unknown", present - set(classes))):
        if names:
            raise DataError(
                f"{path} {what} class folders: {list_some(sorted(names))}; "
                f"its class folders must be those of {train_folder}"
            )
    return _list_images(path, classes, in_chans, notes)


def _list_images(path: Path, classes: Sequence[str], in_chans: int, notes: list[str]) -> FolderImages:
    paths: list[bytes] = []
    labels: list[int] = []
    turns: list[int] = []
    others = 0
    for label, name in enumerate(classes):
        files = sorted(_files(path / name))
        images = [file for file in files if os.path.splitext(file)[1].lower() in IMAGE_SUFFIXES]
        others += len(files) - len(images)
        if not images:
            raise DataError(f"the class folder {path / name} has no images; add some or remove it from every split")
        paths += [os.fsencode(os.path.relpath(file, path)) for file in images]
        labels += [label] * len(images)
        turns += range(len(images))
    if others:
        notes.append(f"{others:,} files under {path} are left out: their names do not end like an image's")
    in_turn = np.lexsort((labels, turns))
    return FolderImages(path, np.array(paths)[in_turn], np.array(labels, dtype=np.int64)[in_turn], in_chans)


def _files(path: Path) -> Iterator[str]:
    for parent, _, names in os.walk(path, followlinks=True):
        yield from (os.path.join(parent, name) for name in names if not name.startswith("."))
