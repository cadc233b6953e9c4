"""The public Python API: what is in it, that importing it is cheap, and one short use of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitscale

NAMES = {
    "EvalResult",
    "Proof",
    "Result",
    "RunConfig",
    "VitscaleError",
    "build_model",
    "dump_config",
    "evaluate_run",
    "load_config",
    "open_run",
    "train",
    "verify_engines",
}


def test_names() -> None:
    assert set(vitscale.__all__) == NAMES
    for name in NAMES:
        assert getattr(vitscale, name) is getattr(vitscale, name)
    assert vitscale.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitscale.nothing  # noqa: B018


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, vitscale; print([m for m in ('torch', 'pydantic', 'timm', 'deepspeed') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_load_build_train_evaluate(tmp_path: Path) -> None:
    keys = ["train.epochs=null", "train.max_updates=6", "eval.every_epochs=null", "data.val_limit=50"]
    config = vitscale.load_config("digits", keys)
    model = vitscale.build_model(config.model, num_classes=10, seed=0)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    result = vitscale.train(config, tmp_path / "run", device="cpu", observers=[])
    assert result.updates == 6
    assert result.images_seen == 6 * 32
    trained = vitscale.open_run(tmp_path / "run")
    found = vitscale.evaluate_run(trained, "val", torch.device("cpu"))
    assert found.num_samples == 50
    assert found.top1 == pytest.approx(result.top1)


def test_the_start_says_how_pretrained_weights_were_fitted(tmp_path: Path) -> None:
    model = vitscale.build_model(vitscale.load_config("digits").model, num_classes=7, seed=1)
    save_file(model.state_dict(), tmp_path / "seven.safetensors")

    class Listener:
        notes: tuple[str, ...] = ()

        def start(self, info: dict) -> None:
            self.notes = tuple(info["notes"])

        def metrics(self, row: dict) -> None: ...

        def event(self, row: dict) -> None: ...

        def close(self) -> None: ...

    keys = [f"model.pretrained={tmp_path}/seven.safetensors", "train.epochs=null", "train.max_updates=2"]
    config = vitscale.load_config("digits", [*keys, "eval.every_epochs=null", "data.val_limit=50"])
    first, resumed = Listener(), Listener()
    vitscale.train(config, tmp_path / "run", device="cpu", observers=[first])
    assert any("head" in note and "7" in note for note in first.notes), first.notes
    vitscale.train(config, tmp_path / "run", device="cpu", observers=[resumed])
    assert not any("head" in note for note in resumed.notes), resumed.notes
