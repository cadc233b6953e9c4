"""Hugging Face style parquet: {train,validation,test}*.parquet with an image column (struct of bytes and path, or plain
bytes) and integer labels.

A set of equal-sized images that fits is decoded into memory. Otherwise the encoded bytes stay in memory if they fit,
else row groups are read from disk as they are needed, which is slow in random order and said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitscale.data.decode import decode_image
from vitscale.data.images import MEMORY_LIMIT_BYTES, ImageSet, MemoryImages
from vitscale.data.sources_memory import RawSplits
from vitscale.errors import DataError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label", "labels")
SPLIT_PREFIXES = {"train": ("train",), "val": ("validation", "valid", "val", "dev"), "test": ("test",)}


def parquet(root: Path, in_chans: int) -> RawSplits:
    """Open all splits of the files under `root` (a folder, searched whole, or one file of training images)."""
    files = [root] if root.is_file() else sorted(root.rglob("*.parquet"))
    by_split: dict[str, list[Path]] = {"train": files} if root.is_file() else _by_split(files)
    if not by_split.get("train"):
        raise DataError(f"{root} has no train*.parquet; name the files train-*, validation-* and test-*")
    notes: list[str] = []
    splits = {split: _open_split(paths, split, in_chans, notes) for split, paths in by_split.items() if paths}
    classes = _class_names(by_split["train"][0])
    if not classes:
        classes = tuple(str(label) for label in range(int(splits["train"].labels.max(initial=0)) + 1))
    return RawSplits(splits["train"], splits.get("val"), splits.get("test"), classes, notes=tuple(notes))


def _by_split(files: list[Path]) -> dict[str, list[Path]]:
    """Files by what their names begin with."""
    return {
        split: [file for file in files if file.name.lower().startswith(prefixes)]
        for split, prefixes in SPLIT_PREFIXES.items()
    }


def _class_names(file: Path) -> tuple[str, ...]:
    """Names in the metadata that the `datasets` library writes, or none."""
    handle = _open_file(file)
    metadata = handle.schema_arrow.metadata or {}
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return tuple(features.get(_column(handle, LABEL_COLUMNS, file), {}).get("names", ()))


def _open_file(file: Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    with _readable(file):
        return pq.ParquetFile(file)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Name the file if pyarrow cannot read it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as parquet ({str(error).splitlines()[0]}); fetch it again") from None


def _column(handle: pq.ParquetFile, names: tuple[str, ...], file: Path) -> str:
    present = handle.schema_arrow.names
    found = next((name for name in names if name in present), None)
    if found is None:
        raise DataError(f"{file} has no column {' or '.join(names)}; its columns are {', '.join(present)}")
    return found


def _open_split(files: list[Path], split: str, in_chans: int, notes: list[str]) -> ImageSet:
    images = ParquetImages(files, in_chans)
    if not len(images):
        return images
    held = _decode_all(images, f"{files[0].parent} {split}")
    if held is not None:
        return held
    if images.num_bytes <= MEMORY_LIMIT_BYTES:
        images.hold()
    else:
        notes.append(
            f"the {split} images of {files[0].parent} do not fit into memory and are read from disk row group by row "
            "group, which is slow in random order; image folders are faster"
        )
    return images


def _decode_all(images: ParquetImages, origin: str) -> MemoryImages | None:
    """All images as one tensor, or None if they differ in size or are too many."""
    first = images.read(0)
    if first.numel() * len(images) > MEMORY_LIMIT_BYTES:
        return None
    pixels = torch.empty((len(images), *first.shape), dtype=torch.uint8)
    for index in range(len(images)):
        image = images.read(index)
        if image.shape != first.shape:
            return None
        pixels[index] = image
    return MemoryImages(pixels, images.labels, origin)


class ParquetImages:
    """Encoded images in parquet files, decoded on reading. `rows` are places in the concatenation of all files."""

    pixels = None

    def __init__(self, files: list[Path], in_chans: int) -> None:
        self.files = files
        self.in_chans = in_chans
        labels, group_sizes, places = [], [], []
        self.num_bytes = 0
        for number, file in enumerate(files):
            handle = _open_file(file)
            self.column = _column(handle, IMAGE_COLUMNS, file)
            labels.append(_labels(handle, file))
            for group in range(handle.num_row_groups):
                metadata = handle.metadata.row_group(group)
                group_sizes.append(metadata.num_rows)
                places.append((number, group))
                self.num_bytes += metadata.total_byte_size
        self.labels: NDArray[np.int64] = np.concatenate(labels)
        self.rows: NDArray[np.int64] = np.arange(len(self.labels))
        self._starts = np.concatenate([[0], np.cumsum(group_sizes)]).astype(np.int64)
        self._places = places
        self._groups: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def hold(self) -> None:
        """Keep the encoded bytes of all row groups in memory."""
        self._groups = {group: self._read_group(group) for group in range(len(self._places))}

    def read(self, index: int) -> torch.Tensor:
        """Decode image `index`."""
        row = int(self.rows[index])
        group = self._group_of(row)
        if group not in self._groups:
            self._groups = {group: self._read_group(group)}  # the last one read, as rows in order come from the same
        value = self._groups[group][row - int(self._starts[group])].as_py()
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(encoded, bytes):
            raise DataError(f"{self.name(index)} has no bytes in column {self.column}; a path alone is not enough")
        return decode_image(encoded, self.in_chans, self.name(index))

    def _group_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _read_group(self, group: int) -> Any:
        number, place = self._places[group]
        file = self.files[number]
        with _readable(file):
            table = _open_file(file).read_row_group(place, columns=[self.column], use_threads=False)
        return table.column(0).combine_chunks()

    def name(self, index: int) -> str:
        """File and row there."""
        row = int(self.rows[index])
        number = self._places[self._group_of(row)][0]
        first_group = next(place for place, (file, _) in enumerate(self._places) if file == number)
        return f"{self.files[number]}, row {row - int(self._starts[first_group])}"

    def subset(self, indices: NDArray[np.int64]) -> ParquetImages:
        """The set of these images, with the same row groups in memory."""
        chosen = copy(self)
        chosen.labels, chosen.rows = self.labels[indices], self.rows[indices]
        return chosen


def _labels(handle: pq.ParquetFile, file: Path) -> NDArray[np.int64]:
    import pyarrow as pa

    name = _column(handle, LABEL_COLUMNS, file)
    with _readable(file):
        column = handle.read(columns=[name]).column(0)
    if not pa.types.is_integer(column.type) or column.null_count:
        kind = "has empty cells" if column.null_count else f"is {column.type}"
        raise DataError(f"{file}: column {name} {kind}, but labels must be whole numbers from 0")
    return np.asarray(column.to_numpy(), dtype=np.int64)
