"""Pretrained weights from a local safetensors file, fitted to the model: head, position and patch embedding.

In: a model and a file in timm's names. Out: the model with these weights, and sentences that say what was changed.
Not here: downloads, and pickle-based files (.pth), which can run code. Checkpoints of a run are checkpoint's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.layers import PatchEmbed, resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer

from vitscale.errors import ModelError
from vitscale.models.stem import FIRST_CONV

Tensors = dict[str, torch.Tensor]


def load_pretrained(model: VisionTransformer, path: Path) -> tuple[str, ...]:
    """Load `path` into `model` and return the sentences that say what had to be changed to fit.

    The head keeps its own fresh weights if the number of classes differs. Position embeddings are resampled on the
    grid, prefix tokens untouched; the patch embedding is resampled if the patch size differs and its input channels
    are adapted as timm does. Every other difference raises ModelError, which names the tensor.
    """
    tensors = {name: tensor.float() for name, tensor in read_safetensors(path).items()}
    try:
        notes = [
            *_fit_head(model, tensors),
            *_fit_patch_embed(model, tensors, path),
            *_fit_pos_embed(model, tensors, path),
        ]
        own = model.state_dict()
        check_names(own, tensors, path)
        check_shapes(own, tensors, path)
    except ModelError as error:
        raise ModelError(f"model.pretrained={error}; it must hold the weights of a model like model.name") from None
    model.load_state_dict(tensors)
    return tuple(notes)


def read_safetensors(path: Path) -> Tensors:
    """Read all tensors of a safetensors file to the CPU; ModelError if it is missing, damaged or another format."""
    if not path.is_file():
        raise ModelError(f"model.pretrained={path} is not a file")
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"model.pretrained={path} cannot be read as safetensors ({error}); vitscale reads only that format, "
            "because pickle-based files can run code"
        ) from error


def check_names(own: Iterable[str], tensors: Iterable[str], path: Path) -> None:
    """Raise ModelError if the file lacks a tensor of the model or has one too many."""
    missing = sorted(set(own) - set(tensors))
    unexpected = sorted(set(tensors) - set(own))
    if not missing and not unexpected:
        return
    parts = []
    if missing:
        parts.append(f"lacks {_some(missing)} of the model")
    if unexpected:
        parts.append(f"has {_some(unexpected)} that the model lacks")
    moved = any(name.startswith("fc_norm.") for name in missing) and any(n.startswith("norm.") for n in unexpected)
    hint = "; with model.global_pool=avg, model.kwargs.fc_norm=false keeps the final norm where the file has it"
    raise ModelError(f"{path} {' and '.join(parts)}{hint if moved else ''}")


def check_shapes(own: Tensors, tensors: Tensors, path: Path) -> None:
    """Raise ModelError, with both shapes, at the first tensor whose shape differs."""
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ModelError(
                f"{path}: tensor {name} has shape {tuple(tensor.shape)}, the model needs {tuple(own[name].shape)}"
            )


def _fit_head(model: VisionTransformer, tensors: Tensors) -> list[str]:
    """Keep the model's own head where the file's has another number of classes, or none."""
    notes = []
    own = model.state_dict()
    for head in ("head", "head_dist"):
        weight = own.get(f"{head}.weight")
        found = tensors.get(f"{head}.weight")
        if weight is None or (found is not None and found.shape[0] == weight.shape[0]):
            continue
        tensors[f"{head}.weight"], tensors[f"{head}.bias"] = weight, own[f"{head}.bias"]
        before = "no classifier" if found is None else f"{found.shape[0]} classes"
        notes.append(f"pretrained file has {before}: {head} starts afresh with {weight.shape[0]} classes")
    return notes


def _fit_patch_embed(model: VisionTransformer, tensors: Tensors, path: Path) -> list[str]:
    """Adapt the patch embedding's input channels and patch size; of a convolutional stem the channels alone."""
    is_patch = isinstance(model.patch_embed, PatchEmbed)
    name = "patch_embed.proj.weight" if is_patch else FIRST_CONV
    own = model.state_dict()[name]  # (embed_dim or the first width, in_chans, patch or 3, patch or 3)
    found = tensors.get(name)
    if found is None:
        return []
    if found.ndim != 4:
        raise ModelError(f"{path}: tensor {name} has shape {tuple(found.shape)}, the model needs {tuple(own.shape)}")
    notes = []
    if found.shape[1] != own.shape[1]:
        notes.append(f"patch embedding adapted from {found.shape[1]} to {own.shape[1]} input channels")
        found = adapt_input_conv(own.shape[1], found, base_chans=found.shape[1])
    if is_patch and found.shape[2:] != own.shape[2:]:
        notes.append(f"patch embedding resampled from patch {found.shape[-1]} to {own.shape[-1]}")
        found = resample_patch_embed(found, list(own.shape[2:]))
    tensors[name] = found
    return notes


def _fit_pos_embed(model: VisionTransformer, tensors: Tensors, path: Path) -> list[str]:
    """Resample position embeddings to the model's grid; class and register tokens stay as they are."""
    found = tensors.get("pos_embed")
    if found is None or model.pos_embed is None or found.shape == model.pos_embed.shape:
        return []
    prefix = 0 if model.no_embed_class else int(model.num_prefix_tokens)
    old = math.isqrt(max(found.shape[1] - prefix, 0)) if found.ndim == 3 else 0
    if old == 0 or old * old != found.shape[1] - prefix or found.shape[2] != model.pos_embed.shape[2]:
        raise ModelError(
            f"{path}: tensor pos_embed has shape {tuple(found.shape)}, which is no square grid after {prefix} prefix "
            f"tokens at width {model.pos_embed.shape[2]}; the model needs {tuple(model.pos_embed.shape)}"
        )
    grid = list(model.patch_embed.grid_size)
    tensors["pos_embed"] = resample_abs_pos_embed(found, grid, [old, old], num_prefix_tokens=prefix)
    return [f"position embeddings resampled from {old}x{old} to {grid[0]}x{grid[1]} patches"]


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + rest
