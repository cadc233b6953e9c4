"""models.weights: a local file fitted to another head, grid, patch or channel count, and refused otherwise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed, resample_patch_embed

from vitscale.config.run import ModelConfig
from vitscale.errors import ModelError
from vitscale.models.build import build_model

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
REGISTERS = {"reg_tokens": 2}


@pytest.fixture
def source() -> dict[str, torch.Tensor]:
    return build_model(ModelConfig(**SMALL, kwargs=REGISTERS), 10, seed=7).state_dict()


@pytest.fixture
def file(source: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    save_file(source, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def load(file: Path, num_classes: int = 10, **changes: Any) -> dict[str, torch.Tensor]:
    config = ModelConfig(**{**SMALL, "kwargs": REGISTERS, "pretrained": file, **changes})
    return build_model(config, num_classes, seed=1).state_dict()


def test_same_model_loads_as_it_is(source: dict[str, torch.Tensor], file: Path) -> None:
    loaded = load(file)
    assert all(torch.equal(loaded[name], source[name]) for name in source)


def test_half_precision_files_become_fp32(source: dict[str, torch.Tensor], file: Path) -> None:
    save_file({name: tensor.half() for name, tensor in source.items()}, file)
    assert load(file)["head.weight"].dtype == torch.float32


def test_head_of_another_size_starts_afresh_and_says_so(
    source: dict[str, torch.Tensor], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="vitscale"):
        loaded = load(file, num_classes=3)
    assert loaded["head.weight"].shape == (3, 32)
    assert torch.equal(loaded["norm.weight"], source["norm.weight"])
    assert "10 classes: head starts afresh with 3 classes" in caplog.text


def test_position_embeddings_are_resized_and_prefix_tokens_untouched(
    source: dict[str, torch.Tensor], file: Path
) -> None:
    loaded = load(file, img_size=48)["pos_embed"]
    assert loaded.shape == (1, 3 + 36, 32)
    assert torch.equal(loaded[:, :3], source["pos_embed"][:, :3])
    expected = resample_abs_pos_embed(source["pos_embed"], [6, 6], [4, 4], num_prefix_tokens=3)
    torch.testing.assert_close(loaded, expected, rtol=0, atol=0)


def test_patch_embedding_is_resampled(source: dict[str, torch.Tensor], file: Path) -> None:
    loaded = load(file, patch_size=4, img_size=16)
    expected = resample_patch_embed(source["patch_embed.proj.weight"], [4, 4])
    torch.testing.assert_close(loaded["patch_embed.proj.weight"], expected, rtol=0, atol=0)
    assert torch.equal(loaded["pos_embed"], source["pos_embed"])


def test_grey_images_get_the_sum_over_colours(source: dict[str, torch.Tensor], file: Path) -> None:
    loaded = load(file, in_chans=1)["patch_embed.proj.weight"]
    torch.testing.assert_close(loaded, source["patch_embed.proj.weight"].sum(1, keepdim=True))


def test_what_does_not_fit_names_the_tensor(source: dict[str, torch.Tensor], file: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"embed_dim": 16}, r"pos_embed has shape \(1, 19, 32\)|cls_token has shape"),
        ({"depth": 3}, r"lacks blocks\.2\."),
        ({"depth": 1}, r"has blocks\.1\..* and 10 more that the model lacks"),
        ({"kwargs": {}}, r"pos_embed has shape \(1, 19, 32\), which is no square grid after 1 prefix"),
        ({"global_pool": "avg"}, "model.kwargs.fc_norm=false"),
        ({"pretrained": file.with_name("gone.safetensors")}, "is not a file"),
    ]
    for changes, sentence in cases:
        with pytest.raises(ModelError, match=sentence):
            load(file, **changes)
    load(file, global_pool="avg", kwargs={**REGISTERS, "fc_norm": False})


def test_damaged_or_pickled_files_are_refused(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load(file)
    torch.save({"head.bias": torch.zeros(10)}, tmp_path / "model.pth")
    with pytest.raises(ModelError, match="pickle-based files can run code"):
        load(tmp_path / "model.pth")


def test_a_convolutional_stem_takes_other_channels_but_no_patches(
    source: dict[str, torch.Tensor], file: Path, tmp_path: Path
) -> None:
    conv = tmp_path / "conv.safetensors"
    stem = build_model(ModelConfig(**SMALL, kwargs=REGISTERS, stem="conv"), 10, seed=7).state_dict()
    save_file(stem, conv)
    name = "patch_embed.backbone.0.conv.weight"
    assert torch.equal(load(conv, stem="conv")[name], stem[name])
    grey = load(conv, stem="conv", in_chans=1)[name]
    torch.testing.assert_close(grey, stem[name].sum(dim=1, keepdim=True))
    with pytest.raises(ModelError, match=r"lacks patch_embed\.backbone"):
        load(file, stem="conv")
    with pytest.raises(ModelError, match=r"has patch_embed\.backbone|lacks patch_embed\.proj"):
        load(conv)
