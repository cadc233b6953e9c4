"""open_splits: a DataConfig becomes train, val and test ImageSets with class names, mean and std.

One module per kind of source reads files (sources_*.py); here is what all share: the held-out share, limits, the
checks of labels and classes, normalisation. Deterministic: every rank that opens the same data gets the same splits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitscale.config.augment import check_normalisation
from vitscale.config.run import DataConfig
from vitscale.data.draws import Purpose, permutation
from vitscale.data.images import ImageSet, SplitName, Splits, check_labels, list_some, pixel_statistics
from vitscale.data.sources_cifar import cifar
from vitscale.data.sources_folder import folder
from vitscale.data.sources_memory import RawSplits, digits, npz, synthetic
from vitscale.data.sources_parquet import parquet
from vitscale.errors import ConfigError, DataError

SPLIT_SEED = 0  # fixed: the held-out images are the same for every train.seed
DIGITS_VAL_FRACTION = 0.2
VAL_IS_TEST = "val is the test split: there is no other"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_splits(
    config: DataConfig, *, img_size: int, in_chans: int, num_classes: int | None = None, seed: int = 0
) -> Splits:
    """Open the data set of `config` for a model of this resolution and these channels.

    num_classes: of the model's head, if fixed; labels must lie inside, and the synthetic source makes that many.
    seed: of synthetic images only. Raises DataError or ConfigError.
    """
    raw = _hold_out(_open(config, img_size, in_chans, num_classes, seed), config)
    _check(raw, num_classes, _where(config))
    assert raw.val is not None
    train, train_notes = _limit(raw.train, config.train_limit, "train", len(raw.classes))
    val, val_notes = _limit(raw.val, config.val_limit, "val", len(raw.classes))
    mean, std = _normalisation(raw, train, config, in_chans)
    notes = (*raw.notes, *train_notes, *val_notes)
    return Splits(train, val, raw.test, raw.classes, mean, std, notes)


def open_split(
    config: DataConfig,
    name: SplitName,
    *,
    img_size: int,
    in_chans: int,
    num_classes: int | None = None,
    seed: int = 0,
) -> ImageSet:
    """One split of the data set of `config`."""
    return open_splits(config, img_size=img_size, in_chans=in_chans, num_classes=num_classes, seed=seed).split(name)


def _open(config: DataConfig, img_size: int, in_chans: int, num_classes: int | None, seed: int) -> RawSplits:
    if config.source == "digits":
        return digits(in_chans)
    if config.source == "synthetic":
        return synthetic(config.synthetic_size, img_size, in_chans, num_classes, seed)
    assert config.root is not None  # DataConfig refuses it
    root = config.root.expanduser()
    if not root.exists() and not config.download:
        raise DataError(f"data.root={config.root} does not exist")
    if config.source == "npz":
        return npz(root, in_chans)
    if config.source == "parquet":
        return parquet(root, in_chans)
    if config.source == "folder":
        return folder(root, in_chans)
    return cifar(config.source, root, in_chans, config.download)


def stratified_split(labels: NDArray[np.int64], fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices (kept, held out), both ascending: of each class the nearest whole share, one at least of two or more."""
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held[members[permutation(SPLIT_SEED, Purpose.SPLIT, int(label), len(members))[:count]]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _hold_out(raw: RawSplits, config: DataConfig) -> RawSplits:
    """Choose val: a share of train if asked for, else the source's val split, else its test split."""
    fraction = config.val_fraction
    if fraction is None and config.source == "digits":
        fraction = DIGITS_VAL_FRACTION
    if fraction is None:
        if raw.val is not None:
            return raw
        if raw.test is None:
            raise DataError(f"{_where(config)} has no val or test split; set data.val_fraction, for example to 0.1")
        return replace(raw, val=raw.test, test=None, notes=(*raw.notes, VAL_IS_TEST))
    if fraction == 0:
        raise ConfigError("data.val_fraction=0 holds nothing out; leave it unset for the source's own split")
    kept, held = stratified_split(raw.train.labels, fraction)
    if not len(held):
        raise DataError(f"{_where(config)} has one image per class, so data.val_fraction={fraction} can hold none out")
    note = (
        f"{len(held):,} of {len(raw.train):,} training images are held out as val ({fraction:g} of each class, fixed)"
    )
    # A source's own val split stays out of training: it becomes test where there is none.
    test = raw.test if raw.test is not None else raw.val
    return replace(raw, train=raw.train.subset(kept), val=raw.train.subset(held), test=test, notes=(*raw.notes, note))


def _where(config: DataConfig) -> str:
    return config.source if config.root is None else str(config.root)


def _check(raw: RawSplits, num_classes: int | None, where: str) -> None:
    """Labels inside the classes, classes inside the model's head, every val class known to train."""
    if num_classes is not None and len(raw.classes) > num_classes:
        raise DataError(
            f"{where} has {len(raw.classes)} classes but model.num_classes={num_classes}; "
            f"set model.num_classes={len(raw.classes)} or leave it unset"
        )
    for images in (raw.train, raw.val, raw.test):
        if images is not None:
            check_labels(images.labels, len(raw.classes), images, "the data set")
    assert raw.val is not None
    for split, images in (("train", raw.train), ("val", raw.val)):
        if not len(images):
            raise DataError(f"{where}: the {split} split is empty")
    present = np.unique(raw.train.labels)
    unknown = np.setdiff1d(raw.val.labels, present)
    if len(unknown):
        names = list_some([raw.classes[label] for label in unknown])
        raise DataError(
            f"{where}: val has classes that train has no image of: {names}; add some, or remove them from val"
        )


def _limit(images: ImageSet, limit: int | None, split: str, num_classes: int) -> tuple[ImageSet, tuple[str, ...]]:
    """The first `limit` images and what to say about it."""
    total = len(images)
    if limit is not None and limit < total:
        images = images.subset(np.arange(limit))
        notes = [f"data.{split}_limit keeps the first {limit:,} of {total:,} {split} images"]
    else:
        notes = [] if limit is None else [f"data.{split}_limit={limit} changes nothing: {split} has {total:,} images"]
    missing = num_classes - len(np.unique(images.labels))
    if missing:
        notes.append(f"{missing} of {num_classes} classes have no {split} image")
    return images, tuple(notes)


def _normalisation(
    raw: RawSplits, train: ImageSet, config: DataConfig, in_chans: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """mean and std: the config's, else the source's published ones, else those of the training pixels or ImageNet."""
    mean, std = raw.mean, raw.std
    if mean is None or std is None:
        mean, std = _default_normalisation(train, in_chans)
    check_normalisation(config, in_chans)
    mean, std = config.mean or mean, config.std or std
    if min(std) <= 0:
        raise ConfigError(f"data.std={list(std)} must be above 0 in every channel; set data.std by hand")
    return mean, std


def _default_normalisation(train: ImageSet, in_chans: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if train.pixels is not None:
        return pixel_statistics(train.pixels)
    if in_chans == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    # Grey: the mean of luma is the luma of the means; the std is near the channels' own.
    return (0.4588,) * in_chans, (0.226,) * in_chans
