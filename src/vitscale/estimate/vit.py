"""Shapes of timm's Vision Transformers, and their parameters and FLOPs in closed form. Torch-free.

In: a ModelConfig. Out: a ViTShape, counts, and errors about sizes that do not fit, before torch is loaded.
vit_shapes.json holds what each timm name changes of ViTShape's defaults (made by tests/estimate/vit_table.py, compared
by a test). Models whose blocks are built otherwise (AIMv2, parallel blocks, ...) have `standard = False`: their sizes
are checked, their counts are None, never a guess. Hybrids with a convolutional stem and distilled DeiTs are not here.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from vitscale.config.run import DataConfig, ModelConfig
from vitscale.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ViTShape:
    """What decides a ViT's size; the defaults are those of timm's constructor."""

    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "token"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    qk_norm: bool = False
    scale_attn_norm: bool = False
    scale_mlp_norm: bool = False
    proj_bias: bool = True
    init_values: float | None = None
    class_token: bool = True
    pos_embed: str = "learn"
    no_embed_class: bool = False
    reg_tokens: int = 0
    pre_norm: bool = False
    final_norm: bool = True
    standard: bool = True
    stem: str = "patch"  # ours, not timm's: model.stem

    @property
    def num_patches(self) -> int:
        """N: tokens that stand for patches."""
        return (self.img_size // self.patch_size) ** 2

    @property
    def num_prefix_tokens(self) -> int:
        """Class and register tokens."""
        return int(self.class_token) + self.reg_tokens

    @property
    def num_tokens(self) -> int:
        """T: what a block works on."""
        return self.num_patches + self.num_prefix_tokens

    @property
    def mlp_hidden(self) -> int:
        """H: width of the MLP."""
        return int(self.embed_dim * self.mlp_ratio)


class Conv(NamedTuple):
    """One convolution of the patch embedding: (in_chans, H, W) -> (out_chans, edge, edge)."""

    in_chans: int
    out_chans: int
    kernel: int
    edge: int

    @property
    def weights(self) -> int:
        """Elements of its weight."""
        return self.kernel**2 * self.in_chans * self.out_chans


def stem_convs(shape: ViTShape) -> list[Conv]:
    """The convolutions that embed patches: one of the patch's size, or with model.stem=conv 3x3 ones of stride 2, as
    in arXiv 2106.14881: each halves the image and doubles the width, up to one pixel per patch and the model's width.
    """
    if shape.stem == "patch":
        return [Conv(shape.in_chans, shape.embed_dim, shape.patch_size, shape.img_size // shape.patch_size)]
    steps = shape.patch_size.bit_length() - 1
    widths = [shape.in_chans, *(max(1, shape.embed_dim >> step) for step in reversed(range(steps)))]
    return [Conv(widths[n], widths[n + 1], 3, shape.img_size >> (n + 1)) for n in range(steps)]


def model_names() -> list[str]:
    """Every timm name that vitscale trains."""
    return sorted(_table())


def shape_of(model: ModelConfig, num_classes: int | None = None) -> ViTShape:
    """The shape that this config asks for; ConfigError if it cannot exist.

    num_classes: what the data has, where model.num_classes is None; unknown counts as 0, that is, without a head.
    """
    own = _own_shape(model.name)
    named = ("img_size", "patch_size", "stem", "in_chans", "embed_dim", "depth", "num_heads", "global_pool")
    changes = {name: value for name in named if (value := getattr(model, name)) is not None}
    known = {field.name for field in fields(ViTShape)} - {"stem"}
    extra = {name: value for name, value in model.kwargs.items() if name in known}
    unknown_parts = {"mlp_layer", "block_fn", "attn_layer", "embed_layer", "norm_layer", "embed_norm_layer"}
    shape = replace(own, **{**extra, **changes}, num_classes=model.num_classes or num_classes or 0)
    if unknown_parts & set(model.kwargs):
        shape = replace(shape, standard=False)
    _check_patch(model, shape)
    _check_stem(shape)
    _check_heads(shape)
    if shape.global_pool == "token" and not shape.class_token:
        raise ConfigError(f"model.global_pool=token: {model.name} has no class token; use model.global_pool=avg")
    return shape


def check_resolution(model: ModelConfig) -> tuple[int, int]:
    """(img_size, patch_size) of this config; ConfigError, with the nearest legal sizes, if they do not fit."""
    shape = shape_of(model)
    return shape.img_size, shape.patch_size


def expected_classes(model: ModelConfig, data: DataConfig) -> int | None:
    """Classes of the head as far as they are known without opening the data."""
    return model.num_classes or {"digits": 10, "cifar10": 10, "cifar100": 100}.get(data.source)


def num_parameters(shape: ViTShape) -> int | None:
    """All parameters, exactly as timm counts them; None where the blocks are not standard."""
    if not shape.standard:
        return None
    dim, hidden, norm = shape.embed_dim, shape.mlp_hidden, 2 * shape.embed_dim
    convs = stem_convs(shape)
    bias = 0 if shape.pre_norm and shape.stem == "patch" else dim
    embed = sum(conv.weights for conv in convs) + bias + sum(2 * conv.out_chans for conv in convs[:-1])  # their norms
    positions = shape.num_patches + (0 if shape.no_embed_class else shape.num_prefix_tokens)
    tokens = shape.num_prefix_tokens * dim + (positions * dim if shape.pos_embed == "learn" else 0)
    norms = norm * (shape.pre_norm + shape.final_norm)
    pool = 0
    if shape.global_pool == "map":  # a latent query over the tokens, then an MLP
        pool = dim + 4 * (dim**2 + dim) + norm + 2 * dim * hidden + hidden + dim
    head = dim * shape.num_classes + shape.num_classes
    return embed + tokens + norms + shape.depth * block_parameters(shape) + pool + head


def block_parameters(shape: ViTShape) -> int:
    """Parameters of one standard block."""
    dim, hidden, norm = shape.embed_dim, shape.mlp_hidden, 2 * shape.embed_dim
    attention = 4 * dim**2 + 3 * dim * shape.qkv_bias + dim * shape.proj_bias
    attention += 4 * (dim // shape.num_heads) * shape.qk_norm + norm * shape.scale_attn_norm
    mlp = 2 * dim * hidden + (hidden + dim) * shape.proj_bias + 2 * hidden * shape.scale_mlp_norm
    layer_scale = 2 * dim if shape.init_values else 0
    return attention + mlp + layer_scale + 2 * norm


def forward_flops(shape: ViTShape) -> int | None:
    """FLOPs of one image's forward pass: matrix products only, a multiply-add counted as 2 (torch's FlopCounterMode).

    Per block and token 2 x (4 D^2 + 2 D H) for the linear layers and 4 T D for scores and weighted sum.
    """
    if not shape.standard:
        return None
    return _embed_flops(shape) + shape.depth * _block_flops(shape) + _head_flops(shape)


def training_flops(shape: ViTShape, *, checkpointing: bool = False) -> int | None:
    """FLOPs of one image's forward and backward.

    Backward costs two products per forward product (by the input, by the weight), except that images need no
    gradient. With activation checkpointing the blocks run forward once more: that is work done, not work needed, so
    model FLOPs utilisation is taken from checkpointing=False.
    """
    forward = forward_flops(shape)
    if forward is None:
        return None
    of_images = _conv_flops(stem_convs(shape)[0])
    return 3 * forward - of_images + (shape.depth * _block_flops(shape) if checkpointing else 0)


def _embed_flops(shape: ViTShape) -> int:
    return sum(_conv_flops(conv) for conv in stem_convs(shape))


def _conv_flops(conv: Conv) -> int:
    return 2 * conv.weights * conv.edge**2


def _block_flops(shape: ViTShape) -> int:
    tokens, dim, hidden = shape.num_tokens, shape.embed_dim, shape.mlp_hidden
    return 2 * tokens * (4 * dim**2 + 2 * dim * hidden) + 4 * tokens**2 * dim


def _head_flops(shape: ViTShape) -> int:
    tokens, dim = shape.num_tokens, shape.embed_dim
    pool = 0
    if shape.global_pool == "map":
        pool = 2 * (2 * dim**2 + 2 * tokens * dim**2) + 4 * tokens * dim + 4 * dim * shape.mlp_hidden
    return pool + 2 * dim * shape.num_classes


def _check_patch(model: ModelConfig, shape: ViTShape) -> None:
    size, patch = shape.img_size, shape.patch_size
    # A published model may leave a rim of pixels unseen (384 by patch 14): its own sizes are taken as they are.
    if size % patch == 0 or (model.img_size is None and model.patch_size is None):
        return
    below = size // patch * patch
    sizes = [legal for legal in (below, below + patch) if legal]
    divisors = [edge for edge in range(1, size + 1) if size % edge == 0]
    patches = sorted(sorted(divisors, key=lambda edge: abs(edge - patch))[:2])
    raise ConfigError(
        f"model.img_size={size} is not a multiple of the patch size {patch} of {model.name}; nearest legal: "
        f"model.img_size={' or '.join(map(str, sizes))}, or model.patch_size={' or '.join(map(str, patches))}"
    )


def _check_stem(shape: ViTShape) -> None:
    patch = shape.patch_size
    if shape.stem == "conv" and (patch < 2 or patch & (patch - 1) or shape.img_size % patch):
        above = 1 << max(1, patch.bit_length())
        legal = [size for size in (above // 2, above) if size > 1 and shape.img_size % size == 0] or [2, 4]
        raise ConfigError(
            f"model.stem=conv halves an image of {shape.img_size} px down to patches, which patch size {patch} "
            f"does not allow; nearest legal: model.patch_size={' or '.join(map(str, legal))}"
        )


def _check_heads(shape: ViTShape) -> None:
    dim, heads = shape.embed_dim, shape.num_heads
    if dim % heads:
        divisors = [number for number in range(1, dim + 1) if dim % number == 0]
        legal = sorted(sorted(divisors, key=lambda number: abs(number - heads))[:2])
        raise ConfigError(
            f"model.embed_dim={dim} is not a multiple of the {heads} attention heads; nearest legal: "
            f"model.num_heads={' or '.join(map(str, legal))}"
        )


def _own_shape(name: str) -> ViTShape:
    base = name.partition(".")[0]  # timm allows vit_base_patch16_224.augreg_in21k; the tag names weights only
    if base not in _table():
        close = difflib.get_close_matches(base, model_names(), n=1, cutoff=0.6)
        hint = f" (did you mean {close[0]}?)" if close else "; `timm.list_models('vit*')` in Python lists timm's"
        raise ConfigError(f"model.name={name} is not a plain timm Vision Transformer{hint}")
    return ViTShape(**_table()[base])


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = (files("vitscale.estimate") / "vit_shapes.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return models
