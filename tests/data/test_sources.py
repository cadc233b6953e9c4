"""Splits of digits, npz and synthetic images: what they hold, how val is chosen, and every way they can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitscale.config.run import DataConfig
from vitscale.data import images as images_module
from vitscale.data.images import Splits, pixel_statistics
from vitscale.data.sources import open_split, open_splits, stratified_split
from vitscale.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def open_npz(path: Path, in_chans: int = 3, num_classes: int | None = None, **keys: object) -> Splits:
    config = DataConfig(source="npz", root=path, **keys)  # type: ignore[arg-type]
    return open_splits(config, img_size=4, in_chans=in_chans, num_classes=num_classes)


def write_npz(path: Path, **changes: object) -> Path:
    """A good file of 3 classes, 4x4 RGB, with `changes` to its arrays; None removes one."""
    arrays: dict[str, object] = {
        "train_images": RNG.integers(0, 256, (30, 4, 4, 3), dtype=np.uint8),
        "train_labels": np.arange(30) % 3,
        "test_images": RNG.integers(0, 256, (9, 4, 4, 3), dtype=np.uint8),
        "test_labels": np.arange(9) % 3,
        "classes": np.array(["ant", "bee", "cat"]),
        **changes,
    }
    file = path / "set.npz"
    np.savez(file, **{key: value for key, value in arrays.items() if value is not None})
    return file


def test_digits_are_split_80_to_20_by_class_whatever_the_seed() -> None:
    first, second = (open_splits(DataConfig(), img_size=8, in_chans=1, seed=seed) for seed in (0, 1))
    assert len(first.train) + len(first.val) == 1797
    assert len(first.val) == pytest.approx(0.2 * 1797, abs=5)
    counts = np.bincount(first.train.labels) + np.bincount(first.val.labels)
    assert np.abs(np.bincount(first.val.labels) - 0.2 * counts).max() <= 0.5
    assert first.test is None
    assert first.classes == tuple("0123456789")
    assert first.val.pixels is not None
    assert second.val.pixels is not None
    assert torch.equal(first.val.pixels, second.val.pixels)


def test_digits_spread_their_16_levels_and_know_their_statistics() -> None:
    splits = open_splits(DataConfig(), img_size=8, in_chans=1)
    assert splits.train.pixels is not None
    assert splits.val.pixels is not None
    pixels = torch.cat([splits.train.pixels, splits.val.pixels])
    assert pixels.dtype == torch.uint8
    assert set(pixels.unique().tolist()) == {round(level * 255 / 16) for level in range(17)}
    assert (splits.mean, splits.std) == pixel_statistics(pixels)


def test_grey_is_repeated_and_colour_becomes_luma(tmp_path: Path) -> None:
    three = open_splits(DataConfig(), img_size=8, in_chans=3)
    assert three.train.read(0).shape == (3, 8, 8)
    assert len(three.mean) == 3
    file = write_npz(tmp_path)
    colour, grey = open_npz(file).train.read(5).float(), open_npz(file, in_chans=1).train.read(5).float()
    luma = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    assert (grey[0] - luma).abs().max() <= 1


def test_npz_keeps_pixels_labels_and_names(tmp_path: Path) -> None:
    file = write_npz(tmp_path)
    splits = open_npz(file)
    with np.load(file) as arrays:
        assert splits.train.read(7).permute(1, 2, 0).numpy().tolist() == arrays["train_images"][7].tolist()
        assert splits.val.labels.tolist() == arrays["test_labels"].tolist()
    assert splits.classes == ("ant", "bee", "cat")
    assert splits.test is None
    assert "val is the test split" in splits.notes[0]


def test_statistics_are_those_of_the_pixels(tmp_path: Path) -> None:
    splits = open_npz(write_npz(tmp_path))
    assert splits.train.pixels is not None
    pixels = splits.train.pixels.double() / 255
    assert splits.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=5e-5)
    assert splits.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=5e-5)
    chosen = open_npz(write_npz(tmp_path), mean=(0.5, 0.5, 0.5), std=(1, 1, 1))
    assert chosen.mean == (0.5, 0.5, 0.5)


def test_val_fraction_leaves_the_test_split_alone(tmp_path: Path) -> None:
    splits = open_npz(write_npz(tmp_path), val_fraction=0.2)
    assert (len(splits.train), len(splits.val), len(splits.split("test"))) == (24, 6, 9)
    assert np.bincount(splits.val.labels).tolist() == [2, 2, 2]
    assert any("6 of 30 training images are held out" in note for note in splits.notes)


def test_limits_keep_the_first_and_say_so(tmp_path: Path) -> None:
    file = write_npz(tmp_path)
    splits = open_npz(file, train_limit=2, val_limit=100)
    assert splits.train.labels.tolist() == [0, 1]
    assert splits.train.pixels is not None
    assert splits.train.pixels.shape[0] == 2
    text = " ".join(splits.notes)
    assert "keeps the first 2 of 30 train images" in text
    assert "1 of 3 classes have no train image" in text
    assert "val_limit=100 changes nothing" in text


def test_a_stratified_split_is_a_partition_and_keeps_single_images_in_train() -> None:
    labels = np.array([0] * 10 + [1] * 2 + [2])
    kept, held = stratified_split(labels, 0.3)
    assert sorted([*kept, *held]) == list(range(13))
    assert np.bincount(labels[held], minlength=3).tolist() == [3, 1, 0]


def test_synthetic_images_are_learnable_and_of_any_size() -> None:
    config = DataConfig(source="synthetic", synthetic_size=40)
    splits = open_splits(config, img_size=20, in_chans=2, num_classes=4, seed=5)
    assert (len(splits.train), len(splits.val), len(splits.classes)) == (40, 10, 4)
    assert splits.train.read(3).shape == (2, 20, 20)
    assert not torch.equal(splits.train.read(0), splits.val.read(0))
    assert splits.train.pixels is not None
    means = torch.stack([splits.train.pixels[splits.train.labels == label].float().mean(0) for label in range(4)])
    nearest = [
        int((means - image.float()).square().sum((1, 2, 3)).argmin()) for image in map(splits.val.read, range(10))
    ]
    assert nearest == splits.val.labels.tolist()


def test_fewer_synthetic_images_than_classes_are_fine() -> None:
    config = DataConfig(source="synthetic", synthetic_size=6)
    splits = open_splits(config, img_size=8, in_chans=3, num_classes=1000)
    assert len(splits.classes) == 1000
    assert set(splits.val.labels) <= set(splits.train.labels)


def test_synthetic_images_that_do_not_fit_are_made_on_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(source="synthetic", synthetic_size=8)
    held = open_split(config, "train", img_size=16, in_chans=3)
    monkeypatch.setattr("vitscale.data.sources_memory.MEMORY_LIMIT_BYTES", 1000)
    made = open_split(config, "train", img_size=16, in_chans=3)
    assert made.pixels is None
    assert all(torch.equal(made.read(index), held.read(index)) for index in range(8))
    assert torch.equal(made.subset(np.array([5, 2])).read(1), held.read(2))


@pytest.mark.parametrize(
    ("changes", "keys", "sentence"),
    [
        ({"train_labels": np.r_[np.arange(29) % 3, 7]}, {}, r"set\.npz train, index 29: label 7 is outside 0\.\.2"),
        ({"test_labels": np.r_[-1, np.arange(8) % 3]}, {}, r"set\.npz test, index 0: label -1 is outside 0\.\.2"),
        ({"train_labels": np.arange(30) % 2}, {}, r"val has classes that train has no image of: cat"),
        ({"train_labels": np.arange(29) % 3}, {}, r"train_labels must be 30 integers.*\(29,\)"),
        ({"train_labels": np.arange(30) / 3}, {}, r"train_labels must be 30 integers.*float64"),
        ({"train_images": np.zeros((30, 4, 4, 3), np.float32)}, {}, r"train_images must be uint8.*not float32"),
        ({"train_images": np.zeros((30, 48), np.uint8)}, {}, r"train_images must be uint8 of shape.*\(30, 48\)"),
        ({"train_images": None}, {}, r"has no train_images; it holds train_labels, test_images"),
        ({"test_labels": None}, {}, r"has test_images but no test_labels"),
        ({"test_images": None}, {}, r"no val or test split; set data\.val_fraction"),
        (
            {"train_images": np.zeros((0, 4, 4, 3), np.uint8), "train_labels": np.zeros(0, int)},
            {},
            "train split is empty",
        ),
        ({"classes": np.array(["a", None], dtype=object)}, {}, r"cannot be read as an \.npz of plain arrays"),
        ({"train_images": np.full((30, 4, 4, 3), 9, np.uint8)}, {}, r"data\.std=.*must be above 0"),
        ({}, {"num_classes": 2}, r"3 classes but model\.num_classes=2; set model\.num_classes=3"),
        ({}, {"in_chans": 4}, r"3 channels but model\.in_chans=4; set model\.in_chans=3"),
        ({}, {"val_fraction": 0.0}, r"data\.val_fraction=0 holds nothing out"),
        ({}, {"mean": (0.5,)}, r"data\.mean has 1 values but model\.in_chans=3"),
        ({}, {"std": (0.5, 0.0, 0.5)}, r"data\.std=.*must be above 0"),
        (
            {"train_images": np.zeros((3, 4, 4, 3), np.uint8), "train_labels": np.arange(3)},
            {"val_fraction": 0.5},
            r"one image per class.*can hold none out",
        ),
    ],
)
def test_bad_npz_data_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], keys: dict[str, object], sentence: str
) -> None:
    with pytest.raises((DataError, ConfigError), match=sentence) as caught:
        open_npz(write_npz(tmp_path, **changes), **keys)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_held_out_image_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    splits = open_npz(write_npz(tmp_path), val_fraction=0.2, val_limit=3)
    with np.load(tmp_path / "set.npz") as arrays:
        for index in range(3):
            place = int(splits.val.name(index).rsplit(" ", 1)[1])
            assert splits.val.read(index).permute(1, 2, 0).numpy().tolist() == arrays["train_images"][place].tolist()


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root=.*nowhere\.npz does not exist"):
        open_npz(tmp_path / "nowhere.npz")
    with pytest.raises(DataError, match="is not a file"):
        open_npz(tmp_path)
    good = write_npz(tmp_path)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(good.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"broken\.npz cannot be read as an \.npz"):
        open_npz(broken)
    broken.write_bytes(b"no zip at all")
    with pytest.raises(DataError, match=r"broken\.npz cannot be read as an \.npz"):
        open_npz(broken)


def test_an_npz_with_damaged_pixels_is_named(tmp_path: Path) -> None:
    good = write_npz(tmp_path)
    content = bytearray(good.read_bytes())
    content[300] ^= 255  # inside train_images; zip's CRC notices
    good.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"set\.npz cannot be read as an \.npz"):
        open_npz(good)


def test_there_is_no_test_split_apart_from_val() -> None:
    with pytest.raises(DataError, match="no test split apart from val"):
        open_split(DataConfig(), "test", img_size=8, in_chans=1)


def test_the_memory_limit_is_two_gib() -> None:
    assert images_module.MEMORY_LIMIT_BYTES == 2 * 1024**3
