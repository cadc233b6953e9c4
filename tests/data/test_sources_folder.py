"""Image folders: train's classes rule, every image is found, and what is wrong is named by its path."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from data_making import write_image_folder

from vitscale.config.run import DataConfig
from vitscale.data.images import Splits
from vitscale.data.sources import IMAGENET_MEAN, IMAGENET_STD, open_splits
from vitscale.errors import DataError


def open_folder(root: Path, in_chans: int = 3, **keys: object) -> Splits:
    config = DataConfig.model_validate({"source": "folder", "root": root, **keys})
    return open_splits(config, img_size=8, in_chans=in_chans)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_image_folder(tmp_path / "train", {"cat": 5, "ant": 3, "bee": 3})
    write_image_folder(tmp_path / "val", {"ant": 2, "bee": 2, "cat": 2}, seed=1)
    return tmp_path


def test_classes_are_sorted_and_every_image_is_found(root: Path) -> None:
    splits = open_folder(root)
    assert splits.classes == ("ant", "bee", "cat")
    names = {splits.train.name(index) for index in range(len(splits.train))}
    assert names == {str(path) for path in (root / "train").rglob("*.png")}
    for index, label in enumerate(splits.train.labels):
        assert Path(splits.train.name(index)).parent.name == splits.classes[label]
    assert splits.train.pixels is None
    assert (splits.mean, splits.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_any_prefix_is_balanced(root: Path) -> None:
    assert open_folder(root).train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 2]
    assert open_folder(root, train_limit=6).train.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_images_are_read_as_they_are(root: Path) -> None:
    from PIL import Image

    splits = open_folder(root)
    with Image.open(splits.train.name(4)) as image:
        expected = torch.tensor(np.array(image)).permute(2, 0, 1)
    assert torch.equal(splits.train.read(4).long(), expected)
    assert open_folder(root, in_chans=1).train.read(4).shape == (1, 10, 12)


def test_nested_folders_upper_case_suffixes_and_odd_names(root: Path) -> None:
    deep = root / "train" / "ant" / "more" / "größer"
    deep.mkdir(parents=True)
    os.rename(root / "train" / "ant" / "0.png", deep / "ä b.PNG")
    splits = open_folder(root)
    assert str(deep / "ä b.PNG") in {splits.train.name(index) for index in range(len(splits.train))}
    for index in range(len(splits.train)):
        splits.train.read(index)


def test_other_files_are_left_out_and_counted(root: Path) -> None:
    (root / "train" / "ant" / "notes.txt").write_text("x")
    (root / "train" / "bee" / "LICENSE").write_text("x")
    (root / "train" / ".cache").mkdir()
    splits = open_folder(root)
    assert len(splits.train) == 11
    assert f"2 files under {root / 'train'} are left out" in splits.notes[0]


def test_a_plain_folder_needs_a_held_out_share(tmp_path: Path) -> None:
    write_image_folder(tmp_path, {"ant": 10, "bee": 10})
    with pytest.raises(DataError, match=r"no val or test split; set data\.val_fraction"):
        open_folder(tmp_path)
    splits = open_folder(tmp_path, val_fraction=0.2)
    assert (len(splits.train), len(splits.val)) == (16, 4)
    held = {splits.val.name(index) for index in range(4)}
    assert not held & {splits.train.name(index) for index in range(16)}


def test_test_is_kept_apart_from_val(root: Path) -> None:
    write_image_folder(root / "test", {"ant": 1, "bee": 1, "cat": 1}, seed=2)
    splits = open_folder(root)
    assert len(splits.split("test")) == 3
    assert len(splits.val) == 6


def test_unknown_and_missing_val_classes_are_named(root: Path) -> None:
    write_image_folder(root / "val", {"dog": 1, "eel": 1})
    with pytest.raises(DataError, match=r"val has unknown class folders: dog, eel; .*must be those of .*train"):
        open_folder(root)
    for name in ("dog", "eel", "bee"):
        for file in (root / "val" / name).iterdir():
            file.unlink()
        (root / "val" / name).rmdir()
    with pytest.raises(DataError, match="val lacks class folders: bee;"):
        open_folder(root)


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_class_folder_is_named(root: Path, split: str) -> None:
    for file in (root / split / "bee").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=rf"the class folder .*{split}/bee has no images"):
        open_folder(root)


def test_a_root_without_class_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no class folders"):
        open_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file is not a folder"):
        open_folder(tmp_path / "file")


def test_four_channels_are_refused(root: Path) -> None:
    with pytest.raises(DataError, match=r"not model\.in_chans=4"):
        open_folder(root, in_chans=4).train.read(0)
