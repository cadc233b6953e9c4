"""Shapes, parameters and FLOPs in closed form against timm and torch's own counter."""

import json
from importlib.resources import files

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from vit_table import build, table

from vitscale.config.run import DataConfig, ModelConfig
from vitscale.errors import ConfigError
from vitscale.estimate.vit import (
    check_resolution,
    expected_classes,
    forward_flops,
    model_names,
    num_parameters,
    shape_of,
    training_flops,
)


@pytest.mark.timeout(120)
def test_the_table_is_the_installed_timm():
    assert json.loads((files("vitscale.estimate") / "vit_shapes.json").read_text()) == table()


@pytest.mark.parametrize(
    "config",
    [
        {"name": "vit_base_patch16_224"},
        {"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 64, "depth": 4}
        | {"num_heads": 4, "global_pool": "avg"},
        {"name": "vit_small_patch14_reg4_dinov2", "img_size": 28},
        {"name": "vit_base_patch16_clip_224", "depth": 2},
        {"name": "vit_base_patch16_siglip_224", "depth": 2},
        {"name": "deit3_small_patch16_224"},
        {"name": "vit_so400m_patch14_siglip_384", "depth": 1},
        {
            "name": "vit_small_patch16_224",
            "kwargs": {"mlp_ratio": 3.0, "reg_tokens": 2, "qk_norm": True, "init_values": 0.1},
        },
    ],
    ids=lambda config: config["name"],
)
def test_parameters_are_counted_exactly(config):
    arguments = {key: value for key, value in config.items() if key not in ("name", "kwargs")}
    model, _ = build(config["name"], num_classes=7, **arguments, **config.get("kwargs", {}))
    shape = shape_of(ModelConfig(num_classes=7, **config))
    assert num_parameters(shape) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "vit_base_patch16_siglip_224", "vit_small_patch14_reg4_dinov2"]
)
def test_flops_are_what_torch_counts(name):
    arguments = {"num_classes": 10, "depth": 2, "img_size": 112}
    model, _ = build(name, **arguments)
    shape = shape_of(ModelConfig(name=name, **arguments))
    images = torch.empty(2, 3, 112, 112, device="meta")
    # The counter knows matrix products; fused attention on the CPU is not one of them.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        logits = model(images)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as both:
        model(images).sum().backward()
    assert logits.shape == (2, 10)
    assert forward.get_total_flops() == 2 * forward_flops(shape)
    assert both.get_total_flops() == 2 * training_flops(shape)


def test_checkpointing_runs_the_blocks_once_more():
    shape = shape_of(ModelConfig(name="vit_tiny_patch16_224", num_classes=10))
    extra = training_flops(shape, checkpointing=True) - training_flops(shape)
    assert 0.95 * forward_flops(shape) < extra < forward_flops(shape)


def test_what_is_built_otherwise_has_no_count():
    odd = shape_of(ModelConfig(name="vit_base_patch16_18x2_224"))
    changed = shape_of(ModelConfig(name="vit_base_patch16_224", kwargs={"mlp_layer": "swiglu"}))
    assert num_parameters(odd) is forward_flops(odd) is training_flops(odd) is None
    assert num_parameters(changed) is None


def test_names_of_timm_with_a_tag_are_known():
    assert "vit_small_patch16_224" in model_names()
    assert check_resolution(ModelConfig(name="vit_small_patch16_384.augreg_in21k_ft_in1k")) == (384, 16)


def test_a_published_size_is_taken_as_it_is():
    assert check_resolution(ModelConfig(name="vit_so400m_patch14_siglip_384")) == (384, 14)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"name": "vit_tinny_patch16_224"}, ["vit_tinny_patch16_224", "did you mean vit_tiny_patch16_224?"]),
        ({"name": "resnet50"}, ["resnet50 is not a plain timm Vision Transformer"]),
        ({"img_size": 225}, ["model.img_size=225", "patch size 16", "224 or 240", "model.patch_size=9 or 15"]),
        ({"img_size": 8}, ["model.img_size=16", "model.patch_size=4 or 8"]),
        ({"patch_size": 15}, ["model.img_size=224", "210 or 225", "model.patch_size=14 or 16"]),
        ({"embed_dim": 64}, ["model.embed_dim=64", "3 attention heads", "model.num_heads=2 or 4"]),
        (
            {"name": "vit_base_patch16_siglip_gap_224", "global_pool": "token"},
            ["no class token", "model.global_pool=avg"],
        ),
    ],
)
def test_sizes_that_do_not_fit_come_with_legal_ones(config, parts):
    with pytest.raises(ConfigError) as caught:
        check_resolution(ModelConfig(**config))
    for part in parts:
        assert part in str(caught.value)


def test_classes_known_without_the_data():
    assert expected_classes(ModelConfig(), DataConfig(source="digits")) == 10
    assert expected_classes(ModelConfig(), DataConfig(source="cifar100", root=".")) == 100
    assert expected_classes(ModelConfig(num_classes=3), DataConfig(source="digits")) == 3
    assert expected_classes(ModelConfig(), DataConfig(source="folder", root=".")) is None
