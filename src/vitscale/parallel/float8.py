"""float8 matrix products in the blocks, by torchao: which layers, how they scale, and where they stay bf16.

In: a plain timm Vision Transformer on its device, before checkpointing, compile and wrapping. Out: the same model with
the same parameters under the same names; while it trains, the trained linear layers of its blocks cast input, weight
and output gradient to float8 and multiply there. Weights, gradients, masters, optimizer and checkpoints know nothing
of it. Evaluation multiplies in the precision of the weights, as whoever loads an exported model will.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import nn
from torch.nn import functional as F

from vitscale.errors import ConfigError, DeviceError
from vitscale.hardware import FLOAT8_CAPABILITY, FLOAT8_MULTIPLE

emulated = False  # tests on the CPU set it: the casts are real, the products run in fp32


def use_float8(model: nn.Module, device: torch.device) -> str:
    """Turn the blocks' linear layers into float8 layers, in place; return a sentence that says which.

    Raises DeviceError where the device has no float8, ConfigError without torchao or without a layer that fits.
    """
    if not emulated:
        _check_device(device)
    if find_spec("torchao") is None:
        raise ConfigError("precision.compute=float8 needs a package: pip install vitscale[float8]")
    blocks: nn.Module = model.blocks  # type: ignore[assignment]
    linear = {name: layer for name, layer in blocks.named_modules() if isinstance(layer, nn.Linear)}
    chosen = [name for name, layer in linear.items() if _fits(layer)]
    if not chosen:
        raise ConfigError(
            "precision.compute=float8 finds no linear layer in the blocks that is trained and has widths divisible by "
            f"{FLOAT8_MULTIPLE}; change model.embed_dim or model.freeze, or use precision.compute=bf16"
        )
    _convert(blocks, chosen)
    layers = [blocks.get_submodule(name) for name in chosen]
    kind = _plain_in_evaluation(type(layers[0]))
    for layer in layers:
        layer.__class__ = kind
    return f"float8: {len(chosen)} of the {len(linear)} linear layers in the blocks; everything else stays bf16"


def _check_device(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= FLOAT8_CAPABILITY:
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    raise DeviceError(f"precision.compute=float8 is not possible on a {name}; use bf16")


def _fits(layer: nn.Linear) -> bool:
    """A frozen layer needs no gradient of its weight, which torchao's would compute all the same."""
    widths = (layer.in_features, layer.out_features)
    return layer.weight.requires_grad and all(width % FLOAT8_MULTIPLE == 0 for width in widths)


def _convert(blocks: nn.Module, chosen: list[str]) -> None:
    with _quiet():
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # Its defaults are one scale per tensor, taken from the tensor itself at each use: e4m3 for inputs and weights, e5m2
    # for gradients. Padding is for the weight's gradient, which sums over batch x tokens; it is free where 16 divides.
    config = Float8LinearConfig(pad_inner_dim=True, emulate=emulated)
    convert_to_float8_training(blocks, module_filter_fn=lambda _, name: name in chosen, config=config)


@contextmanager
def _quiet() -> Iterator[None]:
    """torchao 0.18 registers its enums in a way that torch 2.14 logs as deprecated, once in each rank."""
    logger = logging.getLogger("torch.utils._pytree")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _plain_in_evaluation(kind: type[nn.Module]) -> type[nn.Module]:
    """torchao's layer, whose class is not public, with a plain product in eval mode."""

    class Float8InTraining(kind):  # type: ignore[valid-type, misc]
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return F.linear(inputs, self.weight, self.bias)
            outputs: torch.Tensor = super().forward(inputs)
            return outputs

    return Float8InTraining
