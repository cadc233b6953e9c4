"""trained: a run folder opened for use, without its data and without unpickling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vitscale.errors import CheckpointError, RunFolderError
from vitscale.models.build import build_model
from vitscale.trained import open_run


def test_opens_weights_classes_and_normalisation(digits_run: Path) -> None:
    trained = open_run(digits_run)
    assert trained.classes == tuple("0123456789")
    assert len(trained.mean) == len(trained.std) == 1
    assert (trained.update, trained.checkpoint.name, trained.ema) == (7, "update-00000007", False)
    expected = build_model(trained.config.model, 10, seed=0).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in trained.model.state_dict().items())
    assert not trained.model.training


def test_ema_weights_on_request(digits_run: Path) -> None:
    trained = open_run(digits_run, "last", ema=True)
    expected = build_model(trained.config.model, 10, seed=1).state_dict()
    assert torch.equal(trained.model.head.weight, expected["head.weight"])


def test_spare_outputs_of_the_head_get_names(digits_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = next(digits_run.glob("checkpoints/*/state.json"))
    values = json.loads(state.read_text())
    values["identity"]["classes"] = values["identity"]["classes"][:8]
    monkeypatch.setattr("vitscale.checkpoint.verify_manifest", lambda path: None)
    state.write_text(json.dumps(values))
    text = (digits_run / "config.yaml").read_text().replace("num_classes: null", "num_classes: 10")
    (digits_run / "config.yaml").write_text(text)
    assert open_run(digits_run).classes[-2:] == ("class 8", "class 9")


def test_pretrained_file_need_not_be_there_any_more(digits_run: Path) -> None:
    text = (digits_run / "config.yaml").read_text()
    (digits_run / "config.yaml").write_text(text.replace("pretrained: null", "pretrained: /gone.safetensors"))
    assert open_run(digits_run).config.model.pretrained == Path("/gone.safetensors")


def test_what_is_no_run_or_of_another_model_is_said(digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no config\.yaml"):
        open_run(tmp_path)
    with pytest.raises(CheckpointError, match="has no checkpoint update-1"):
        open_run(digits_run, "update-1")
    text = (digits_run / "config.yaml").read_text()
    (digits_run / "config.yaml").write_text(text.replace("depth: 4", "depth: 3"))
    with pytest.raises(CheckpointError, match=r"another model than config\.yaml describes: .* has blocks\.3\."):
        open_run(digits_run)
    weights = next(digits_run.glob("checkpoints/*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        open_run(digits_run)
