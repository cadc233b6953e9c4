"""export: timm loads the file as it is, by the line that is printed, with the same logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open

from vitscale.errors import ConfigError
from vitscale.export import export
from vitscale.models.build import build_model
from vitscale.trained import open_run


@pytest.mark.parametrize("ema", [False, True])
def test_the_printed_line_gives_the_same_logits(digits_run: Path, tmp_path: Path, ema: bool) -> None:
    trained = open_run(digits_run, ema=ema)
    exported = export(trained, tmp_path / "out.safetensors")
    model = eval(exported.create_model, {"timm": timm}).eval()
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(images), trained.model(images), rtol=0, atol=0)
    assert "drop" not in exported.create_model, "training settings are for whoever trains next to choose"


def test_a_convolutional_stem_comes_with_its_imports(digits_run: Path, tmp_path: Path) -> None:
    trained = open_run(digits_run)
    config = trained.config.model_copy(
        update={"model": trained.config.model.model_copy(update={"stem": "conv", "patch_size": 4})}
    )
    stemmed = replace(trained, config=config, model=build_model(config.model, 10, seed=3).eval())
    exported = export(stemmed, tmp_path / "out.safetensors")
    *imports, line = exported.create_model.splitlines()
    names: dict[str, object] = {}
    exec("\n".join(imports), names)
    model = eval(line, names).eval()
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(images), stemmed.model(images), rtol=0, atol=0)
    with safe_open(exported.path, "pt") as file:
        assert "ConvStem(in_chans=1" in json.loads(file.metadata()["timm_stem"])["embed_layer"]


def test_metadata_says_how_to_use_the_file(digits_run: Path, tmp_path: Path) -> None:
    trained = open_run(digits_run)
    path = export(trained, tmp_path / "out.safetensors").path
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["classes"]) == list("0123456789")
    assert json.loads(metadata["mean"]) == list(trained.mean)
    arguments = json.loads(metadata["timm_arguments"])
    timm.create_model(metadata["timm_name"], checkpoint_path=str(path), **arguments)
    assert metadata["update"] == "7"


def test_existing_files_are_kept_unless_forced(digits_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_text("precious")
    trained = open_run(digits_run)
    with pytest.raises(ConfigError, match="exists already; choose another name, or --force"):
        export(trained, path)
    assert path.read_text() == "precious"
    export(trained, path, force=True)
    assert path.stat().st_size > 1000


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("killed on the way")

    path = tmp_path / "out" / "model.safetensors"
    path.parent.mkdir()
    path.write_text("precious")
    monkeypatch.setattr("vitscale.export.os.fsync", fail)
    with pytest.raises(RuntimeError):
        export(open_run(digits_run), path, force=True)
    assert [p.name for p in path.parent.iterdir()] == ["model.safetensors"]
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "sentence"), [("out.pth", "must end in .safetensors"), ("gone/out.safetensors", "gone does not exist")]
)
def test_names_that_cannot_be_written(digits_run: Path, tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        export(open_run(digits_run), tmp_path / name)
