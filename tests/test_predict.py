"""predict: files and folders, the same path as evaluation, tables, and what cannot be read."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscale.data.sources import open_splits
from vitscale.errors import DataError
from vitscale.predict import Prediction, as_csv, as_json, predict
from vitscale.trained import open_run

CPU = torch.device("cpu")


@pytest.fixture
def digits() -> torch.Tensor:
    """The first validation images, uint8 (n, 1, 8, 8)."""
    from vitscale.config.run import DataConfig

    pixels = open_splits(DataConfig(), img_size=8, in_chans=1).val.pixels
    assert pixels is not None
    return pixels[:70]


@pytest.fixture
def folder(tmp_path: Path, digits: torch.Tensor) -> Path:
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    for number, image in enumerate(digits):
        where = root / "sub" if number % 2 else root
        Image.fromarray(np.asarray(image[0])).save(where / f"{number:02}.png")
    (root / "notes.txt").write_text("not an image")
    (root / ".hidden.png").write_text("not an image either")
    return root


def test_folder_gives_the_models_own_probabilities(digits_run: Path, folder: Path, digits: torch.Tensor) -> None:
    trained = open_run(digits_run)
    found = {Path(p.path).stem: p for p in predict(trained, folder, device=CPU, top=3, micro_batch_size=16)}
    assert sorted(found) == [f"{number:02}" for number in range(70)]
    images = (digits.float() / 255 - trained.mean[0]) / trained.std[0]
    with torch.no_grad():
        values, indices = trained.model(images).softmax(1).topk(3)
    for number in range(70):
        top = found[f"{number:02}"].top
        assert [name for name, _ in top] == [str(index) for index in indices[number].tolist()]
        assert [share for _, share in top] == pytest.approx(values[number].tolist(), rel=1e-5)


def test_order_is_by_path_and_a_file_is_one_image(digits_run: Path, folder: Path) -> None:
    trained = open_run(digits_run)
    paths = [p.path for p in predict(trained, folder, device=CPU)]
    assert paths == sorted(paths)
    (one,) = predict(trained, folder / "sub" / "01.png", device=CPU, top=99)
    assert one.path == str(folder / "sub" / "01.png")
    assert sum(share for _, share in one.top) == pytest.approx(1, abs=1e-6)


def test_photos_of_any_size_and_colour_are_fitted(digits_run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(tmp_path / "photo.jpg")
    (one,) = predict(open_run(digits_run), tmp_path / "photo.jpg", device=CPU)
    assert len(one.top) == 5


def test_what_cannot_be_read_is_named(digits_run: Path, tmp_path: Path) -> None:
    trained = open_run(digits_run)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_text("no image")
    for path, sentence in [
        (tmp_path / "gone", "gone is neither an image file nor a folder"),
        (tmp_path / "empty", "empty holds no image; file names must end in"),
        (tmp_path / "broken.png", r"broken\.png cannot be decoded"),
    ]:
        with pytest.raises(DataError, match=sentence):
            list(predict(trained, path, device=CPU))


def test_tables() -> None:
    rows = [Prediction("a,b.png", (("cat", 0.75), ("dog", 0.25))), Prediction("c.png", (("dog", 1.0), ("cat", 0.0)))]
    table = list(csv.DictReader(StringIO(as_csv(rows))))
    assert table[0] == {
        "path": "a,b.png",
        "class": "cat",
        "probability": "0.750000",
        "class_2": "dog",
        "probability_2": "0.250000",
    }
    first = json.loads(as_json(rows))[0]
    assert (first["class"], first["probability"], first["top"][1]["class"]) == ("cat", 0.75, "dog")
