"""What the bad inputs of test_bad_input.py need on disk: each function gets an empty folder and makes one thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors.torch import save_file

Make = Callable[[Path], None]


def text(name: str, content: str | bytes) -> Make:
    """A file."""

    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def npz(labels: list[int], val_labels: list[int], classes: list[str]) -> Make:
    """set.npz with grey 8x8 images."""

    def make(folder: Path) -> None:
        arrays = {"train_labels": np.array(labels), "val_labels": np.array(val_labels), "classes": np.array(classes)}
        for split in ("train", "val"):
            arrays[f"{split}_images"] = np.arange(64 * len(arrays[f"{split}_labels"]), dtype=np.uint8).reshape(-1, 8, 8)
        np.savez(folder / "set.npz", **arrays)  # type: ignore[arg-type]

    return make


def pickled_npz(folder: Path) -> None:
    """set.npz whose images are Python objects."""
    np.savez(folder / "set.npz", train_images=np.array([object()], dtype=object), train_labels=np.array([0]))


def image_folder(counts: Mapping[str, int], broken: str | None = None) -> Make:
    """images/SPLIT/CLASS with so many images each, and one file that is none."""

    def make(folder: Path) -> None:
        for name, count in counts.items():
            place = folder / "images" / name
            place.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (8, 8), (index, 99, 7)).save(place / f"{index}.png")
        if broken:
            (folder / "images" / broken).write_bytes(b"no image")

    return make


def parquet(**columns: list[object]) -> Make:
    """set/train-0.parquet."""

    def make(folder: Path) -> None:
        (folder / "set").mkdir()
        pq.write_table(pa.table(columns), folder / "set" / "train-0.parquet")

    return make


def cifar_pickles(folder: Path) -> None:
    """cifar-10-batches-py with other bytes than the published ones."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]
    for name in names:
        text(f"cifar/cifar-10-batches-py/{name}", b"cos\nsystem\n")(folder)


def other_weights(folder: Path) -> None:
    """weights.safetensors of no model."""
    save_file({"cls_token": torch.zeros(3)}, folder / "weights.safetensors")


def truncated(folder: Path) -> None:
    """run, its newest weights cut short."""
    file = newest(folder) / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def altered(folder: Path) -> None:
    """run, one bit of its newest weights changed."""
    file = newest(folder) / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def without(name: str) -> Make:
    """run, a file of its newest checkpoint gone."""
    return lambda folder: (newest(folder) / name).unlink()


def of_a_deeper_model(folder: Path) -> None:
    """run, whose config.yaml describes another model than its checkpoint."""
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace("depth: 4", "depth: 5"))


def newest(folder: Path) -> Path:
    """The newest checkpoint of run."""
    return sorted((folder / "run" / "checkpoints").glob("update-*"))[-1]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder; a held and freed lock file counts as unchanged."""
    files = sorted(path for path in folder.rglob("*") if path.name != "lock" or path.parent.name != "run")
    return {str(path): path.read_bytes() if path.is_file() else None for path in files}


def ds(section: object) -> Make:
    """ds.json."""
    return text("ds.json", json.dumps(section))
