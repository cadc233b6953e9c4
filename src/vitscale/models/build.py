"""Build a timm Vision Transformer from ModelConfig: plain fp32 on the CPU, in timm's own parameter names.

In: ModelConfig, the number of classes, a seed. Out: an nn.Module without rank, wrapper or autocast in it. The
weights are a pure function of the seed, so every rank builds the same ones without communication.
Not here: parallelism (parallel.apply), sizes in closed form for parents without torch (estimate).
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import timm
import torch
from timm.layers import HybridEmbed, PatchEmbed
from timm.models import is_model_in_modules
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitscale.config.run import ModelConfig
from vitscale.errors import ModelError
from vitscale.estimate.vit import shape_of
from vitscale.models.drop_path import replace_drop_path
from vitscale.models.stem import stem_arguments
from vitscale.models.weights import load_pretrained

# timm's modules whose models are VisionTransformer; hybrids (a CNN before the patches) are left out on purpose:
# their BatchNorm makes a result depend on the micro-batch size.
TIMM_MODULES = ("vision_transformer", "deit")

# timm's argument -> the key of ours that sets it; model.kwargs may not set it a second time.
OWNED_ARGUMENTS = {
    "img_size": "model.img_size",
    "patch_size": "model.patch_size",
    "in_chans": "model.in_chans",
    "num_classes": "model.num_classes",
    "embed_dim": "model.embed_dim",
    "depth": "model.depth",
    "num_heads": "model.num_heads",
    "global_pool": "model.global_pool",
    "drop_path_rate": "model.drop_path",
    "pos_drop_rate": "model.dropout",
    "proj_drop_rate": "model.dropout",
}
# Arguments that take a class or would break what the engines rely on (fp32 on the CPU, fixed token count).
CLOSED_ARGUMENTS = ("self", "device", "dtype", "embed_layer", "block_fn", "mlp_layer", "dynamic_img_size",
                    "dynamic_img_pad")  # fmt: skip

_logger = logging.getLogger(__name__)


def build_model(
    config: ModelConfig, num_classes: int, seed: int, *, tell: Callable[[str], None] | None = None
) -> VisionTransformer:
    """Build the model on the CPU in fp32; the same seed gives the same weights on every rank.

    tell: called with a sentence for each way in which pretrained weights had to be fitted to the model.

    Raises ModelError, in one sentence, for an unknown name or argument, a resolution that the patch does not divide,
    a weights file that does not fit, or a prefix in model.freeze that no parameter has.
    """
    check_name(config.name)
    arguments = model_arguments(config, num_classes)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that one would also seed the GPU
        if config.stem == "conv":
            arguments |= stem_arguments(shape_of(config, num_classes))
        model = _create(config.name, arguments)
    _check_resolution(model)
    replace_drop_path(model)
    if config.pretrained is not None:
        for note in load_pretrained(model, config.pretrained):
            (tell or _logger.info)(note)
    freeze(model, config.freeze)
    return model


def model_arguments(config: ModelConfig, num_classes: int) -> dict[str, Any]:
    """The keyword arguments with which `timm.create_model(config.name, ...)` gives the same architecture, but for a
    convolutional stem, which models.stem describes."""
    _check_kwargs(config.kwargs)
    names = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "global_pool")
    arguments: dict[str, Any] = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    arguments["in_chans"] = config.in_chans
    arguments["num_classes"] = num_classes
    if config.drop_path:
        arguments["drop_path_rate"] = config.drop_path
    if config.dropout:
        arguments["pos_drop_rate"] = arguments["proj_drop_rate"] = config.dropout
    return arguments | config.kwargs


def image_size(model: VisionTransformer) -> int:
    """The (square) input resolution in pixels that the model was built for."""
    return int(model.patch_embed.img_size[0])


def check_name(name: str) -> None:
    """Raise ModelError, with the nearest names, unless `name` is a timm Vision Transformer."""
    # is_model_in_modules ignores the weights tag; create_model would refuse an unknown one
    if is_model_in_modules(name, TIMM_MODULES):
        return
    if timm.is_model(name):
        raise ModelError(
            f"model.name={name} is a timm model but no plain Vision Transformer; vitscale trains the models of timm's "
            "vision_transformer and deit modules, for example vit_small_patch16_224"
        )
    known = [model for module in TIMM_MODULES for model in timm.list_models(module=module)]
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or ["vit_tiny_patch16_224"]
    raise ModelError(f"model.name={name} is not a timm Vision Transformer; nearest: {', '.join(nearest)}")


def freeze(model: nn.Module, prefixes: tuple[str, ...]) -> None:
    """Stop training all parameters under the given dotted prefixes; 'backbone' is all but the classifier head."""
    for prefix in prefixes:
        frozen = [parameter for name, parameter in model.named_parameters() if _is_under(name, prefix)]
        if not frozen:
            parts = [name.rpartition(".")[0] or name for name, _ in model.named_parameters()]
            nearest = difflib.get_close_matches(prefix, parts, n=3, cutoff=0.4) or ["blocks.0", "patch_embed"]
            raise ModelError(
                f"model.freeze has {prefix!r}, but no parameter of the model is under that prefix; nearest: "
                f"{', '.join(dict.fromkeys(nearest))}, or 'backbone' for all but the head"
            )
        for parameter in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"model.freeze={list(prefixes)} freezes every parameter; leave at least one trainable")


def _is_under(name: str, prefix: str) -> bool:
    # whole components only: blocks.1 is not a prefix of blocks.10
    if prefix == "backbone":
        return not name.startswith(("head.", "head_dist."))
    return name == prefix or name.startswith(prefix.rstrip(".") + ".")


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    known = set(inspect.signature(VisionTransformer.__init__).parameters) - set(CLOSED_ARGUMENTS)
    for name in kwargs:
        if name in OWNED_ARGUMENTS:
            raise ModelError(f"model.kwargs.{name} is set by {OWNED_ARGUMENTS[name]}; use that key instead")
        if name not in known:
            nearest = difflib.get_close_matches(name, sorted(known - set(OWNED_ARGUMENTS)), n=3, cutoff=0.4)
            hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
            raise ModelError(f"model.kwargs.{name} is no argument that can be given to timm's VisionTransformer{hint}")


def _create(name: str, arguments: dict[str, Any]) -> VisionTransformer:
    try:
        model = timm.create_model(name, **arguments)
    except (AssertionError, TypeError, ValueError, KeyError, RuntimeError, ZeroDivisionError) as error:
        reason = str(error).strip().split("\n")[0].removesuffix(", but expected one of:") or type(error).__name__
        given = ", ".join(f"{key}={value}" for key, value in arguments.items() if key != "embed_layer")
        raise ModelError(f"model.name={name} cannot be built with {given}: {reason}") from error
    if not isinstance(model, VisionTransformer) or not isinstance(model.patch_embed, PatchEmbed | HybridEmbed):
        raise ModelError(f"model.name={name} builds a {type(model).__name__} that is no plain Vision Transformer")
    return model


def _check_resolution(model: VisionTransformer) -> None:
    size, patch = image_size(model), int(model.patch_embed.patch_size[0])
    if size >= patch and size % patch == 0:
        return
    below = max(size // patch, 1) * patch
    sizes = sorted({below, below + patch})
    patches = sorted((d for d in range(1, size + 1) if size % d == 0), key=lambda d: (abs(d - patch), d))[:2]
    raise ModelError(
        f"model.img_size={size} is not a multiple of model.patch_size={patch}; nearest legal img_size: "
        f"{' or '.join(map(str, sizes))}; or keep img_size={size} with patch_size {' or '.join(map(str, patches))}"
    )
