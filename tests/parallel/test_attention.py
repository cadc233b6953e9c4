"""parallel.attention: what is chosen, and that it is measured once. What kernels are worth is seen on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vitscale.config.run import ModelConfig
from vitscale.models.build import build_model
from vitscale.parallel import attention
from vitscale.parallel.attention import Shape, attention_shape, cached, choose, use

SHAPE = Shape(8, 2, 17, 16)
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention, "_key", lambda *_: "some GPU")


def test_the_shape_is_the_models() -> None:
    config = ModelConfig(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, kwargs={"reg_tokens": 3})
    assert attention_shape(build_model(config, 10, 0), 8) == Shape(8, 2, 16 + 1 + 3, 16)


def test_auto_takes_the_fastest_and_says_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "measure", lambda *_: {"flash": 2e-3, "cudnn": 1e-3, "math": 9e-3})
    choice = choose("auto", SHAPE, CUDA, torch.bfloat16)
    assert choice is not None
    assert choice.kernel == "cudnn"
    assert "cudnn 1.000 ms, flash 2.000 ms, math 9.000 ms" in choice.why


def test_what_is_asked_for_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "measure", lambda *_: pytest.fail("measured"))
    choice = choose("efficient", SHAPE, CUDA, torch.bfloat16)
    assert choice is not None
    assert choice.kernel == "efficient"
    assert choose("default", SHAPE, CUDA, torch.bfloat16) is None
    assert choose("auto", SHAPE, torch.device("cpu"), torch.float32) is None


def test_it_is_measured_once_for_each_shape(tmp_path: Path) -> None:
    assert cached("a", lambda: {"flash": 1.0}) == {"flash": 1.0}
    assert cached("a", lambda: pytest.fail("measured again")) == {"flash": 1.0}
    assert cached("b", lambda: {"math": 2.0}) == {"math": 2.0}
    assert set(json.loads((tmp_path / "vitscale" / "attention.json").read_text())) == {"a", "b"}


def test_a_damaged_or_absent_cache_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vitscale").mkdir()
    (tmp_path / "vitscale" / "attention.json").write_text("{")
    assert cached("a", lambda: {"flash": 1.0}) == {"flash": 1.0}
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert cached("a", lambda: {"math": 1.0}) == {"math": 1.0}


def test_use_leaves_torchs_own_as_a_way_out() -> None:
    switches = {
        "flash": torch.backends.cuda.flash_sdp_enabled,
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
        "math": torch.backends.cuda.math_sdp_enabled,
    }
    try:
        use("cudnn")
        assert {name: on() for name, on in switches.items()} == {
            "flash": False, "cudnn": True, "efficient": False, "math": True,
        }  # fmt: skip
    finally:
        for enable in attention._ENABLE.values():
            enable(True)
