"""The packed image sets of ../shared/data, where that folder exists (or VITSCALE_DATA points at it)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_making import run_config, train_loader

from vitscale.config.run import DataConfig
from vitscale.data.sources import open_splits
from vitscale.data.sources_folder import folder
from vitscale.errors import DataError

DATA = Path(os.environ.get("VITSCALE_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "unpack.py").is_file(), reason="no packed image sets")


def unpack(out: Path, *arguments: str) -> Path:
    subprocess.run([sys.executable, str(DATA / "unpack.py"), arguments[0], str(out), *arguments[1:]], check=True)
    return out


def test_cifar10_as_npz_has_the_published_statistics(tmp_path: Path) -> None:
    file = unpack(tmp_path, "cifar10") / "cifar10.npz"
    splits = open_splits(DataConfig(source="npz", root=file), img_size=32, in_chans=3)
    assert (len(splits.train), len(splits.val)) == (50_000, 10_000)
    assert splits.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert splits.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
    assert splits.classes[:2] == ("airplane", "automobile")
    assert np.bincount(splits.train.labels).tolist() == [5000] * 10


def test_imagenette_is_an_image_folder(tmp_path: Path) -> None:
    root = unpack(tmp_path, "imagenette") / "imagenette"
    for split in ("train", "val"):  # unpack.py files the images that upstream took from ILSVRC's val under this name
        shutil.rmtree(root / split / "ILSVRC2012", ignore_errors=True)
    splits = open_splits(DataConfig(source="folder", root=root), img_size=224, in_chans=3)
    assert len(splits.classes) == 10
    assert len(splits.train) > 1000
    config = run_config(root=root, source="folder", workers=2, random_resized_crop=True, flip=True, randaugment=2)
    options = {"num_classes": 10, "mean": splits.mean, "std": splits.std}
    loader = train_loader(splits.train, config, micro=16, img_size=64, **options)
    for update in loader.iterate(0, 2):
        images = update.micro_batches[0].images
        assert images.shape == (16, 3, 64, 64)
        assert torch.isfinite(images).all()
        assert 0.3 < images.std() < 3


def test_native_photos_of_any_size_and_mode_are_read(tmp_path: Path) -> None:
    root = unpack(tmp_path, "imagenet_sample") / "imagenet_sample"
    config = DataConfig(source="folder", root=root)
    with pytest.raises(DataError, match=r"set data\.val_fraction"):
        open_splits(config, img_size=32, in_chans=3)
    photos = folder(root, 3).train
    sizes = {tuple(photos.read(index).shape) for index in range(40)}
    assert len(sizes) > 10
