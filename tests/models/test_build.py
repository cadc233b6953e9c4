"""models.build: names, sizes, seeds, freezing, and the sentences for what cannot be built."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from vitscale.config.run import ModelConfig
from vitscale.errors import ModelError
from vitscale.models.build import build_model, image_size, model_arguments

TINY: dict[str, Any] = {
    "name": "vit_tiny_patch16_224",
    "img_size": 8,
    "patch_size": 2,
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
}


def tiny(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**TINY, **changes})


def test_weights_are_a_pure_function_of_the_seed() -> None:
    torch.manual_seed(123)
    first = build_model(tiny(), 10, seed=1).state_dict()
    state = torch.get_rng_state()
    second = build_model(tiny(), 10, seed=1).state_dict()
    other = build_model(tiny(), 10, seed=2).state_dict()
    assert torch.equal(state, torch.get_rng_state()), "building must not move the global generator"
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert {tensor.dtype for tensor in first.values()} == {torch.float32}


def test_model_arguments_rebuild_the_same_architecture_in_timm() -> None:
    config = tiny(global_pool="avg", drop_path=0.1, dropout=0.1, kwargs={"init_values": 1e-4, "reg_tokens": 2})
    ours = build_model(config, 7, seed=0)
    theirs = timm.create_model(config.name, **model_arguments(config, 7))
    assert {n: t.shape for n, t in ours.state_dict().items()} == {n: t.shape for n, t in theirs.state_dict().items()}
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k", "deit3_small_patch16_224", "test_vit2"]
)
def test_the_models_own_sizes_are_the_default(name: str) -> None:
    model = build_model(ModelConfig(name=name), 10, seed=0)
    assert model.head.out_features == 10
    assert image_size(model) == timm.create_model(name).patch_embed.img_size[0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "vit_tiny_patch16_22"}, "nearest: vit_tiny_patch16_224"),
        ({"name": "resnet50"}, "no plain Vision Transformer"),
        ({"name": "vit_base_r50_s16_224"}, "no plain Vision Transformer"),
        ({"img_size": 9}, "model.img_size=9 is not a multiple of model.patch_size=2; nearest legal img_size: 8 or 10"),
        ({"img_size": 4, "patch_size": 8}, "nearest legal img_size: 8 or 16; or keep img_size=4 with patch_size 4"),
        ({"embed_dim": 33}, "dim should be divisible by num_heads"),
        ({"kwargs": {"depth": 3}}, "model.kwargs.depth is set by model.depth"),
        ({"kwargs": {"reg_token": 3}}, "nearest: reg_tokens"),
        ({"kwargs": {"device": "cuda"}}, "model.kwargs.device is no argument"),
        ({"kwargs": {"norm_layer": "nix"}}, "cannot be built"),
        ({"kwargs": {"class_token": False}}, "Token pooling needs the class token"),
        ({"freeze": ("block.0",)}, "no parameter of the model is under that prefix; nearest: blocks.0"),
        ({"freeze": ("backbone", "head")}, "freezes every parameter"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_model(tiny(**changes), 10, seed=0)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def trainable(**changes: Any) -> set[str]:
    model = build_model(tiny(**changes), 10, seed=0)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_freeze_backbone_leaves_the_head() -> None:
    assert trainable(freeze=("backbone",)) == {"head.weight", "head.bias"}


def test_freeze_takes_whole_components_of_the_name() -> None:
    names = trainable(depth=11, freeze=("blocks.1", "pos_embed"))
    assert not any(name.startswith("blocks.1.") for name in names)
    assert "pos_embed" not in names
    assert "blocks.10.attn.qkv.weight" in names
