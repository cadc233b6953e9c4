"""Predict the classes of image files with a trained model.

In: a Trained model and a file or folder of images. Out: one Prediction per image, in the order of their paths. Images
go the same way as those of an evaluation: data.decode, resize and centre crop, the run's own normalisation.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from vitscale.data.decode import IMAGE_SUFFIXES
from vitscale.data.loader import EvalLoader
from vitscale.data.sources_folder import FolderImages
from vitscale.errors import DataError
from vitscale.models.build import image_size
from vitscale.trained import Trained

FEW_IMAGES = 64  # fewer are read in this process: worker processes would take longer to start


@dataclass(frozen=True, slots=True)
class Prediction:
    """The likeliest classes of one image, likeliest first, with their probabilities (softmax over all classes)."""

    path: str
    top: tuple[tuple[str, float], ...]


def predict(
    trained: Trained, images: Path, *, device: torch.device, top: int = 5, micro_batch_size: int = 64
) -> Iterator[Prediction]:
    """Predict `images`, a file or a folder with all its sub-folders.

    At most `top` classes per image. Raises DataError, naming the file, where there is no image or one cannot be read.
    """
    folder, names = list_images(images)
    files = FolderImages(
        folder,
        np.array([os.fsencode(name) for name in names]),
        np.zeros(len(names), dtype=np.int64),
        trained.config.model.in_chans,
    )
    forward = trained.forward_on(device)
    position = 0
    for batch in _loader(trained, files, device, micro_batch_size):
        chances = forward(batch.images).float().softmax(dim=1)
        values, indices = chances.topk(min(top, len(trained.classes)), dim=1)  # (B, top) each
        for row, where in zip(values.tolist(), indices.tolist(), strict=True):
            classes = (trained.classes[index] for index in where)
            yield Prediction(files.name(position), tuple(zip(classes, row, strict=True)))
            position += 1


def list_images(path: Path) -> tuple[Path, list[str]]:
    """(folder, sorted paths relative to it) of a file, or of all images under a folder; hidden files are left out."""
    if path.is_file():
        return path.parent, [path.name]
    if not path.is_dir():
        raise DataError(f"{path} is neither an image file nor a folder")
    found = [
        os.path.relpath(os.path.join(parent, name), path)
        for parent, _, names in os.walk(path)
        for name in names
        if not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
    ]
    if not found:
        raise DataError(f"{path} holds no image; file names must end in {', '.join(sorted(IMAGE_SUFFIXES))}")
    return path, sorted(found)


def as_csv(predictions: Iterable[Prediction]) -> str:
    """A table with the columns path, class, probability, class_2, probability_2, ..."""
    rows = list(predictions)
    count = max((len(row.top) for row in rows), default=1)
    heads = ((f"class_{rank}", f"probability_{rank}") for rank in range(2, count + 1))
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "class", "probability", *chain.from_iterable(heads)])
    for row in rows:
        writer.writerow([row.path, *chain.from_iterable((name, f"{share:.6f}") for name, share in row.top)])
    return text.getvalue()


def as_json(predictions: Iterable[Prediction]) -> str:
    """A list of objects: path, class, probability, and top, the list of the likeliest classes."""
    rows = []
    for row in predictions:
        top = [{"class": name, "probability": share} for name, share in row.top]
        rows.append({"path": row.path, **top[0], "top": top})
    return json.dumps(rows, indent=1) + "\n"


def _loader(trained: Trained, files: FolderImages, device: torch.device, micro_batch_size: int) -> EvalLoader:
    config = trained.config
    if len(files) < FEW_IMAGES:
        config = config.model_copy(update={"data": config.data.model_copy(update={"workers": 0})})
    return EvalLoader(
        files,
        config,
        micro_batch_size=micro_batch_size,
        img_size=image_size(trained.model),
        mean=trained.mean,
        std=trained.std,
        device=device,
    )
