"""optim.groups: what decays, and layer-wise learning rates as timm has them."""

from __future__ import annotations

import pytest
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay

from vitscale.config.run import ModelConfig, OptimConfig
from vitscale.models.build import build_model
from vitscale.optim.groups import param_groups


@pytest.fixture
def model() -> VisionTransformer:
    config = ModelConfig(
        img_size=8, patch_size=2, embed_dim=32, depth=3, num_heads=2, kwargs={"reg_tokens": 2, "init_values": 1e-4}
    )
    return build_model(config, 10, seed=0)


def by_name(model: VisionTransformer, config: OptimConfig) -> dict[str, tuple[float, float]]:
    return {
        name: (group["weight_decay"], group["lr_scale"])
        for group in param_groups(model, config)
        for name in group["param_names"]
    }


def test_one_dimensional_parameters_and_tokens_do_not_decay(model: VisionTransformer) -> None:
    found = by_name(model, OptimConfig(weight_decay=0.1))
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name in ("cls_token", "pos_embed", "reg_token", "norm.weight", "head.bias", "blocks.0.ls1.gamma"):
        assert found[name] == (0.0, 1.0), name
    for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.2.mlp.fc2.weight", "head.weight"):
        assert found[name] == (0.1, 1.0), name
    assert len(param_groups(model, OptimConfig())) == 2


def test_groups_do_not_depend_on_the_value_of_weight_decay(model: VisionTransformer) -> None:
    """A resumed run may change it to or from 0; its groups must still be those of the checkpoint."""
    names = [[g["param_names"] for g in param_groups(model, OptimConfig(weight_decay=d))] for d in (0.0, 0.1)]
    assert names[0] == names[1]


def test_layer_decay_equals_timms(model: VisionTransformer) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    theirs = {
        names[id(parameter)]: (group["weight_decay"], group["lr_scale"])
        for group in param_groups_layer_decay(model, 0.1, model.no_weight_decay(), layer_decay=0.5)
        for parameter in group["params"]
    }
    found = by_name(model, OptimConfig(weight_decay=0.1, layer_decay=0.5))
    assert found == theirs
    assert found["head.weight"][1] == 1.0
    assert found["norm.weight"][1] == found["blocks.2.mlp.fc1.weight"][1] == 0.5
    assert found["pos_embed"][1] == 0.5**4


def test_frozen_parameters_are_left_out_and_do_not_move_the_others(model: VisionTransformer) -> None:
    config = OptimConfig(layer_decay=0.5)
    before = by_name(model, config)
    model.blocks.requires_grad_(False)
    after = by_name(model, config)
    assert set(after) == {name for name in before if not name.startswith("blocks.")}
    assert all(after[name] == before[name] for name in after)
