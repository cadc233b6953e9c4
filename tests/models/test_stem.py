"""models.stem: the convolutional stem is timm's parts, counted exactly, independent of its neighbours in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitscale.config.run import ModelConfig, OptimConfig
from vitscale.errors import ConfigError
from vitscale.estimate.vit import forward_flops, num_parameters, shape_of, training_flops
from vitscale.models.build import build_model, image_size, model_arguments
from vitscale.models.stem import IMPORTS, stem_source
from vitscale.optim.groups import decays, layer_scales

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 2, "stem": "conv"}


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **changes})


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({}, [24, 48]),
        ({"patch_size": 2, "in_chans": 1}, [48]),
        ({"patch_size": 16, "img_size": 64}, [6, 12, 24, 48]),
        ({"name": "vit_base_patch16_clip_224", "patch_size": 8}, [12, 24, 48]),  # without a bias of its patches
        ({"patch_size": None, "img_size": 48, "global_pool": "avg"}, [6, 12, 24, 48]),
    ],
)
def test_each_convolution_halves_the_image(changes: dict[str, Any], widths: list[int]) -> None:
    asked = config(**changes)
    model, shape = build_model(asked, 10, seed=0), shape_of(asked, 10)
    convs = [module for module in model.patch_embed.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [conv.out_channels for conv in convs] == widths
    assert {(conv.kernel_size, conv.stride, conv.padding) for conv in convs} == {((3, 3), (2, 2), (1, 1))}
    assert model.patch_embed.num_patches == shape.num_patches
    assert image_size(model) == shape.img_size
    assert num_parameters(shape) == sum(parameter.numel() for parameter in model.parameters())
    assert not [module for module in model.modules() if "BatchNorm" in type(module).__name__]
    images = torch.rand(2, asked.in_chans, shape.img_size, shape.img_size)
    assert model(images).shape == (2, 10)


def test_flops_are_what_torch_counts() -> None:
    shape = shape_of(config(), 10)
    model = build_model(config(), 10, seed=0)
    images = torch.rand(2, 3, 32, 32)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            model(images)
        with FlopCounterMode(display=False) as both:
            model(images).sum().backward()
    assert forward.get_total_flops() == 2 * (forward_flops(shape) or 0)
    assert both.get_total_flops() == 2 * (training_flops(shape) or 0)


def test_an_image_does_not_depend_on_its_batch() -> None:
    model = build_model(config(), 10, seed=0)
    images = torch.rand(6, 3, 32, 32)
    together, alone = model(images), torch.cat([model(one[None]) for one in images])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_weights_are_a_pure_function_of_the_seed() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build_model(config(), 10, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    name = "patch_embed.backbone.0.conv.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_its_python_rebuilds_it_in_timm() -> None:
    asked = config(global_pool="avg")
    ours = build_model(asked, 10, seed=0)
    words = {name: repr(value) for name, value in model_arguments(asked, 10).items()} | stem_source(shape_of(asked))
    names: dict[str, Any] = {}
    exec("\n".join(IMPORTS), names)
    theirs = eval(f"timm.create_model({asked.name!r}, {', '.join(f'{k}={v}' for k, v in words.items())})", names)
    theirs.load_state_dict(ours.state_dict())
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), rtol=0, atol=0)
    assert timm.__version__  # the line needs timm alone


def test_groups_treat_it_as_the_patch_embedding() -> None:
    model = build_model(config(), 10, seed=0)
    named = dict(model.named_parameters())
    scales = layer_scales(model, OptimConfig(layer_decay=0.5).layer_decay)
    stem = [name for name in named if name.startswith("patch_embed")]
    assert {scales[name] for name in stem} == {scales["pos_embed"]}
    assert [name for name in stem if decays(name, named[name])] == [
        "patch_embed.backbone.0.conv.weight",
        "patch_embed.backbone.1.conv.weight",
    ]


@pytest.mark.parametrize(
    ("changes", "hint"),
    [({"patch_size": 7, "img_size": 28}, "model.patch_size=4"), ({"patch_size": 1}, "model.patch_size=2")],
)
def test_a_patch_that_halving_does_not_reach_is_refused(changes: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.stem=conv halves") as error:
        shape_of(config(**changes))
    assert hint in str(error.value)
    with pytest.raises(ConfigError, match=r"model\.stem=conv halves"):
        build_model(config(**changes), 10, seed=0)
