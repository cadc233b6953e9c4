"""eval, predict and export through the real command line (in this process)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscale.cli.main import run
from vitscale.config.run import DataConfig
from vitscale.data.sources import open_splits
from vitscale.trained import open_run


def test_eval_writes_exact_figures_and_shows_them(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", str(digits_run), "--device", "cpu", "--batch-size", "50"]) == 0
    found = json.loads((digits_run / "eval.json").read_text())
    trained = open_run(digits_run)
    val = open_splits(DataConfig(), img_size=8, in_chans=1).val
    assert val.pixels is not None
    with torch.no_grad():
        logits = trained.model((val.pixels.float() / 255 - trained.mean[0]) / trained.std[0])
    right = logits.argmax(1) == torch.from_numpy(val.labels)
    assert found["num_samples"] == len(val) == np.sum(found["confusion"])
    assert found["top1"] == pytest.approx(right.float().mean().item())
    assert (found["split"], found["checkpoint"], found["ema"]) == ("val", "update-00000007", False)
    shown = capsys.readouterr().out
    assert f"{found['top1']:.2%}" in shown
    assert "most often taken for" in shown


def test_eval_splits_and_ema(digits_run: Path) -> None:
    assert run(["eval", str(digits_run), "--device", "cpu", "--split", "train", "--ema"]) == 0
    found = json.loads((digits_run / "eval.json").read_text())
    assert found["num_samples"] > 1400
    assert found["ema"] is True


def test_eval_of_a_missing_split_says_so(digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", str(digits_run), "--device", "cpu", "--split", "test"]) == 2
    assert "no test split" in capsys.readouterr().err
    assert not (digits_run / "eval.json").exists()


def test_predict_prints_csv_and_writes_files(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "a.png")
    command = ["predict", str(digits_run), str(tmp_path / "a.png"), "--device", "cpu"]
    assert run([*command, "--top", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("path,class,probability,class_2,probability_2\n")
    assert run([*command, "--top", "2", "--out", str(tmp_path / "p.csv")]) == 0
    assert (tmp_path / "p.csv").read_text() == printed
    assert run([*command, "--out", str(tmp_path / "p.json")]) == 0
    (row,) = json.loads((tmp_path / "p.json").read_text())
    assert row["class"] == next(csv.DictReader(printed.splitlines()))["class"]


def test_export_prints_the_line_that_loads_it(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.safetensors"
    assert run(["export", str(digits_run), str(file)]) == 0
    assert f"timm.create_model('vit_tiny_patch16_224', checkpoint_path={str(file)!r}" in capsys.readouterr().out
    assert run(["export", str(digits_run), str(file)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["eval", "{tmp}"], "is not a run folder"),
        (["predict", "{run}", "{tmp}/gone.png"], "neither an image file nor a folder"),
        (["predict", "{run}", "{tmp}", "--out", "x.txt"], "must end in .csv or .json"),
        (["predict", "{run}", "{tmp}", "--out", "x.csv", "--json"], "--json is for stdout"),
        (["predict", "{run}", "{tmp}", "--out", "{tmp}/gone/x.csv"], "does not exist"),
        (["export", "{run}", "{tmp}/x.pth"], "must end in .safetensors"),
        (["export", "{run}", "{tmp}/x.safetensors", "--checkpoint", "update-1"], "has no checkpoint update-1"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    filled = [argument.format(run=digits_run, tmp=tmp_path) for argument in arguments]
    assert run(filled) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
