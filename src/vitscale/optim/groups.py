"""Parameter groups: which parameters decay, and by how much layer-wise decay lowers their learning rate.

In: a plain model (before any wrapper renames its parameters). Out: groups for any torch optimizer, the same in every
engine. Not here: the learning rate itself; engines set group["lr"] = lr of the update x group["lr_scale"].
"""

from __future__ import annotations

from typing import Any

from timm.models import group_parameters
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitscale.config.run import OptimConfig

# By last component of the name: these live outside Linear layers and are 3-D, so the rule on ndim misses them.
NO_DECAY_TOKENS = frozenset({"cls_token", "pos_embed", "reg_token", "dist_token"})

ParamGroup = dict[str, Any]
"""Keys: params, param_names, weight_decay, lr_scale."""


def param_groups(model: VisionTransformer, config: OptimConfig) -> list[ParamGroup]:
    """Trainable parameters, grouped by (lr_scale, weight_decay), groups in the order of their first parameter."""
    scales = layer_scales(model, config.layer_decay)
    groups: dict[tuple[float, bool], ParamGroup] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        key = (scales[name], decays(name, parameter))  # not the value: a resumed run may change it to or from 0
        decay = config.weight_decay if key[1] else 0.0
        group = groups.setdefault(key, {"params": [], "param_names": [], "weight_decay": decay, "lr_scale": key[0]})
        group["params"].append(parameter)
        group["param_names"].append(name)
    return list(groups.values())


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: not to 1-D parameters (norms, biases, layer scale) nor to embedded tokens."""
    return parameter.ndim > 1 and name.rpartition(".")[2] not in NO_DECAY_TOKENS


def layer_scales(model: VisionTransformer, layer_decay: float | None) -> dict[str, float]:
    """Learning-rate factor per parameter: layer_decay ** (layers between it and the head), 1 for the head.

    Layers are timm's: stem, then one per block (the final norm belongs to the last), then the head. Frozen layers
    count, so that freezing does not move the others' rates.
    """
    if layer_decay is None:
        return {name: 1.0 for name, _ in model.named_parameters()}
    layers: dict[str, int] = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    last = max(layers.values())
    return {name: layer_decay ** (last - layer) for name, layer in layers.items()}
