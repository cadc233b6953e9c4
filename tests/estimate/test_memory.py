"""Memory in closed form against what autograd keeps and against the ZeRO paper's figures."""

from dataclasses import replace

import pytest
import timm
import torch

from vitscale.config.run import ModelConfig
from vitscale.estimate.memory import activation_bytes, model_state
from vitscale.estimate.vit import shape_of
from vitscale.models.build import build_model


def kept_bytes(model: torch.nn.Module, images: torch.Tensor, compute: torch.dtype) -> int:
    """Bytes of what forward keeps for backward, weights left out."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    autocast = torch.autocast("cpu", compute, enabled=compute is not images.dtype)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        model(images)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("compute", "params"), [("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")], ids=["fp32", "bf16", "autocast"]
)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
def test_activations_are_what_autograd_keeps(compute, params, checkpointing):
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    arguments = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 6, "num_heads": 3, "num_classes": 10}
    model = timm.create_model("vit_tiny_patch16_224", **arguments).to(dtypes[params])
    model.set_grad_checkpointing(checkpointing)
    shape = shape_of(ModelConfig(**arguments))
    estimate = activation_bytes(shape, 8, compute=compute, params=params, checkpointing=checkpointing)
    if checkpointing:  # the one block that is recomputed at a time is kept in backward, after what is measured here
        one, two = (shape_of(ModelConfig(**arguments | {"depth": depth})) for depth in (1, 2))
        block = activation_bytes(two, 8, compute=compute, params=params)
        estimate -= block - activation_bytes(one, 8, compute=compute, params=params)
    measured = kept_bytes(model, torch.randn(8, 3, 64, 64, dtype=dtypes[params]), dtypes[compute])
    assert estimate == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("compute", "params"), [("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp32")], ids=["fp32", "bf16", "autocast"]
)
def test_activations_of_a_convolutional_stem(compute, params):
    """At a depth of 1, where the stem is no small part."""
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    config = ModelConfig(img_size=64, patch_size=8, embed_dim=96, depth=1, num_heads=3, stem="conv")
    model = build_model(config, 10, seed=0).to(dtypes[params])
    shape = shape_of(config, 10)
    estimate = activation_bytes(shape, 8, compute=compute, params=params)
    measured = kept_bytes(model, torch.randn(8, 3, 64, 64, dtype=dtypes[params]), dtypes[compute])
    assert estimate == pytest.approx(measured, rel=0.05)
    assert activation_bytes(replace(shape, stem="patch"), 8, compute=compute, params=params) < 0.85 * measured


def test_activations_of_odd_blocks_are_not_guessed():
    assert activation_bytes(shape_of(ModelConfig(name="vit_base_patch16_18x2_224")), 1) is None


@pytest.mark.parametrize(
    ("arguments", "per_parameter"),
    [
        ({"engine": "single"}, 16),
        ({"engine": "ddp", "params": "fp32", "world_size": 4}, 16),
        ({"engine": "ddp", "params": "bf16", "world_size": 4}, 16),
        ({"engine": "single", "optimizer": "sgd"}, 12),
        ({"engine": "single", "ema": True}, 20),
        ({"engine": "fsdp2", "params": "bf16", "world_size": 4}, 4),
        ({"engine": "deepspeed", "zero_stage": 0, "params": "bf16", "world_size": 64}, 16),
        ({"engine": "deepspeed", "zero_stage": 1, "params": "bf16", "world_size": 64}, 4.1875),
        ({"engine": "deepspeed", "zero_stage": 2, "params": "bf16", "world_size": 64}, 2.21875),
        ({"engine": "deepspeed", "zero_stage": 3, "params": "bf16", "world_size": 64}, 0.25),
    ],
)
def test_model_state_per_parameter(arguments, per_parameter):
    """The bf16 rows are those of figure 1 of the ZeRO paper: 120, 31.4, 16.6 and 1.9 GB at 7.5 B parameters."""
    number = 64 * 10**6
    assert model_state(number, **arguments).total == number * per_parameter


def test_a_shard_is_rounded_up():
    assert model_state(10, engine="fsdp2", world_size=4).weights == 4 * 3
