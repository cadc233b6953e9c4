"""Parquet: in memory, encoded in memory, and from disk give the same images; names and errors point at file and row."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_making import run_config
from PIL import Image

from vitscale.config.run import DataConfig
from vitscale.data.images import Splits
from vitscale.data.loader import EvalLoader
from vitscale.data.sources import open_splits
from vitscale.errors import DataError

NAMES = ["ant", "bee", "cat"]


def open_parquet(root: Path, **keys: object) -> Splits:
    config = DataConfig.model_validate({"source": "parquet", "root": root, **keys})
    return open_splits(config, img_size=8, in_chans=3)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(
    file: Path,
    sizes: list[tuple[int, int]],
    *,
    image: str = "img",
    label: str = "label",
    plain: bool = False,
    named: bool = False,
    seed: int = 0,
    cells: dict[int, object] | None = None,
    labels: object = None,
) -> list[np.ndarray]:
    """Write random images of these sizes in row groups of 4, and return them. `cells` replaces image cells."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    rows: list[object] = [png(array) if plain else {"bytes": png(array), "path": "x.png"} for array in arrays]
    for index, value in (cells or {}).items():
        rows[index] = value
    table = pa.table({image: rows, label: [i % 3 for i in range(len(sizes))] if labels is None else labels})
    if named:
        info = {"info": {"features": {label: {"names": NAMES, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=4)
    return arrays


SAME = [(8, 8)] * 10
MIXED = [(8, 8)] * 6 + [(9, 7)] * 4


@pytest.mark.parametrize(("image", "label", "plain"), [("img", "label", False), ("image", "fine_label", True)])
def test_equal_sizes_are_held_in_memory(tmp_path: Path, image: str, label: str, plain: bool) -> None:
    first = write(tmp_path / "data/train-00000-of-00002.parquet", SAME, image=image, label=label, plain=plain)
    second = write(tmp_path / "data/train-00001-of-00002.parquet", SAME, image=image, label=label, plain=plain, seed=1)
    held_out = write(tmp_path / "data/test-00000-of-00001.parquet", SAME, image=image, label=label, plain=plain, seed=2)
    splits = open_parquet(tmp_path)
    assert splits.train.pixels is not None
    for index, array in enumerate(first + second):
        assert splits.train.read(index).permute(1, 2, 0).numpy().tolist() == array.tolist()
    assert splits.val.read(9).permute(1, 2, 0).numpy().tolist() == held_out[9].tolist()
    assert splits.classes == ("0", "1", "2")
    assert splits.train.labels.tolist() == [i % 3 for i in range(10)] * 2


@pytest.mark.parametrize("limit", [2 * 2**30, 100])
def test_other_sets_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """The lower limit keeps not even the encoded bytes in memory."""
    monkeypatch.setattr("vitscale.data.sources_parquet.MEMORY_LIMIT_BYTES", limit)
    first = write(tmp_path / "train-0.parquet", MIXED)
    second = write(tmp_path / "train-1.parquet", MIXED, seed=1)
    write(tmp_path / "validation-0.parquet", MIXED, seed=2)
    splits = open_parquet(tmp_path)
    assert splits.train.pixels is None
    arrays = first + second
    for index in (19, 0, 7, 12, 3, 4):
        assert splits.train.read(index).permute(1, 2, 0).numpy().tolist() == arrays[index].tolist()
    chosen = splits.train.subset(np.array([15, 2]))
    assert chosen.read(0).permute(1, 2, 0).numpy().tolist() == arrays[15].tolist()
    assert chosen.name(0).endswith("train-1.parquet, row 5")
    assert any("row group by row group" in note for note in splits.notes) == (limit == 100)


def test_names_come_from_the_metadata(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", SAME, named=True)
    write(tmp_path / "test.parquet", SAME)
    assert open_parquet(tmp_path).classes == tuple(NAMES)


def test_one_file_is_a_training_set(tmp_path: Path) -> None:
    write(tmp_path / "mine.parquet", SAME)
    splits = open_parquet(tmp_path / "mine.parquet", val_fraction=0.3)
    assert (len(splits.train), len(splits.val)) == (7, 3)


def test_a_val_split_is_used_before_test(tmp_path: Path) -> None:
    for name, count in (("train", 10), ("validation", 6), ("test", 9)):
        write(tmp_path / f"{name}-0.parquet", SAME[:count])
    splits = open_parquet(tmp_path)
    assert (len(splits.val), len(splits.split("test"))) == (6, 9)


def test_a_broken_image_is_named_by_file_and_row(tmp_path: Path) -> None:
    write(tmp_path / "test-0.parquet", SAME)
    write(tmp_path / "train-0.parquet", SAME)
    for cell, sentence in (
        ({"bytes": png(np.zeros((8, 8, 3), np.uint8))[:40], "path": "x"}, r"row 3 cannot be decoded"),
        ({"bytes": None, "path": "x.png"}, r"row 3 has no bytes in column img; a path alone is not enough"),
        (None, r"row 3 has no bytes"),
    ):
        write(tmp_path / "train-1.parquet", SAME, cells={3: cell})
        with pytest.raises(DataError, match=rf"train-1\.parquet, {sentence}"):
            open_parquet(tmp_path)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"image": "photo"}, r"has no column img or image; its columns are photo, label"),
        ({"label": "kind"}, r"has no column label or fine_label or labels; its columns are img, kind"),
        ({"labels": ["a"] * 10}, r"column label is string, but labels must be whole numbers"),
        ({"labels": [None] + [0] * 9}, r"column label has empty cells"),
        ({"labels": [0] * 9 + [5], "named": True}, r"index 9: label 5 is outside 0\.\.2"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, keys: dict[str, object], sentence: str) -> None:
    write(tmp_path / "test-0.parquet", SAME)
    write(tmp_path / "train-0.parquet", SAME, **keys)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=sentence):
        open_parquet(tmp_path)


def test_files_without_a_split_and_broken_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", SAME)
    with pytest.raises(DataError, match=r"has no train\*\.parquet"):
        open_parquet(tmp_path)
    (tmp_path / "train.parquet").write_bytes((tmp_path / "all.parquet").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"train\.parquet cannot be read as parquet"):
        open_parquet(tmp_path)


def test_a_set_on_disk_can_be_read_by_forked_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitscale.data.sources_parquet.MEMORY_LIMIT_BYTES", 100)
    write(tmp_path / "train-0.parquet", MIXED)
    write(tmp_path / "test-0.parquet", MIXED)
    val = open_parquet(tmp_path).val
    options = {"micro_batch_size": 4, "img_size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    here, there = (
        [batch.images for batch in EvalLoader(val, run_config(workers=workers), **options)]  # type: ignore[arg-type]
        for workers in (0, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
