"""Makes estimate/vit_shapes.json from the installed timm.

    python tests/estimate/vit_table.py [FILE]     prints or writes the table
    test_vit.py calls `table()` and compares.

Every name of timm's plain ViT files is built on torch's meta device, while the arguments of the constructor are noted.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import Attention, Mlp, PatchEmbed
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block, VisionTransformer

from vitscale.estimate.vit import ViTShape

FILES = ("vision_transformer", "deit")


def table() -> dict[str, Any]:
    """Names and how each differs from ViTShape's defaults."""
    rows = {name: row for file in FILES for name in timm.list_models(module=file) if (row := _row(name)) is not None}
    return {"timm": timm.__version__, "models": dict(sorted(rows.items()))}


def build(name: str, *, first_block_only: bool = False, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A model without weights, and its constructor's arguments."""
    original, noted = VisionTransformer.__init__, {}
    signature = inspect.signature(original)

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        noted.update(bound.arguments)
        original(**bound.arguments | ({"depth": 1} if first_block_only else {}))

    VisionTransformer.__init__ = noting
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return timm.create_model(name, **arguments), noted
    finally:
        VisionTransformer.__init__ = original


def _row(name: str) -> dict[str, Any] | None:
    model, arguments = build(name, first_block_only=True)
    if type(model) is not VisionTransformer or type(model.patch_embed) is not PatchEmbed:
        return None
    shape = {field.name: arguments[field.name] for field in fields(ViTShape) if field.name not in ("standard", "stem")}
    shape |= {"img_size": _edge(shape["img_size"]), "standard": _is_standard(model), "num_classes": 1000}
    defaults = asdict(ViTShape())
    return {key: value for key, value in shape.items() if value != defaults[key]}


def _edge(size: Any) -> int:
    if isinstance(size, int):
        return size
    height, width = size
    assert height == width
    return height


def _is_standard(model: Any) -> bool:
    block = model.blocks[0]
    parts = type(block) is Block and type(block.attn) is Attention and type(block.mlp) is Mlp
    return parts and isinstance(block.norm1, LayerNorm) and isinstance(model.patch_embed.norm, torch.nn.Identity)


if __name__ == "__main__":
    text = json.dumps(table(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text)
