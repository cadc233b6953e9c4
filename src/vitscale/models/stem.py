"""The convolutional stem (model.stem=conv): 3x3 convolutions of stride 2 in place of one map per patch.

In: the shape that a config asks for. Out: arguments for timm's constructor, made of timm's own parts, and the Python
that makes them, for exported files. Between the convolutions stand a LayerNorm over channels and GELU, never
BatchNorm, which would make a result depend on the micro-batch size. How many convolutions of which width: estimate.vit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import HybridEmbed, LayerNorm2d
from timm.models.vision_transformer_hybrid import ConvStem
from torch import nn

from vitscale.estimate.vit import ViTShape, stem_convs

FIRST_CONV = "patch_embed.backbone.0.conv.weight"
IMPORTS = (
    "from functools import partial",
    "import timm, torch",
    "from timm.layers import HybridEmbed, LayerNorm2d",
    "from timm.models.vision_transformer_hybrid import ConvStem",
)


def stem_arguments(shape: ViTShape) -> dict[str, Any]:
    """What to give to timm.create_model beside the other arguments; draws the stem's initial weights."""
    stem = ConvStem(**_sizes(shape), norm_layer=LayerNorm2d, act_layer=nn.GELU)
    return {"patch_size": 1, "embed_layer": partial(HybridEmbed, backbone=stem, proj=False)}


def stem_source(shape: ViTShape) -> dict[str, str]:
    """The same arguments as Python; IMPORTS must stand before it."""
    sizes = "".join(f"{name}={value!r}, " for name, value in _sizes(shape).items())
    stem = f"ConvStem({sizes}norm_layer=LayerNorm2d, act_layer=torch.nn.GELU)"
    return {"patch_size": "1", "embed_layer": f"partial(HybridEmbed, backbone={stem}, proj=False)"}


def _sizes(shape: ViTShape) -> dict[str, Any]:
    convs = stem_convs(shape)
    widths, strides = tuple(conv.out_chans for conv in convs), (2,) * len(convs)
    return {"in_chans": shape.in_chans, "depth": len(convs), "channels": widths, "stride": strides}
