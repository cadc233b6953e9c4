"""Bytes that training needs per device, in closed form: model state and activations. Torch-free.

Estimates for planning and --dry-run, not measurements: allocator slack, buckets in flight, FSDP2's and ZeRO-3's
gathered blocks and the kernels' workspaces come on top.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.estimate.vit import ViTShape, block_parameters, num_parameters, stem_convs

_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "float8": 2}
_STATES = {"adamw": 2, "lamb": 2, "muon": 2, "sgd": 1}  # fp32 tensors per weight; Muon's matrices need only one


class ModelState(NamedTuple):
    """Bytes per device of everything that is as large as the model."""

    weights: int
    gradients: int
    masters: int
    optimizer: int
    ema: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(self)


def state_of(config: RunConfig, decisions: Decisions, num_parameters: int) -> ModelState:
    """Model state per device of a run."""
    return model_state(
        num_parameters,
        engine=decisions.engine,
        zero_stage=decisions.zero_stage,
        params=decisions.precision.params,
        optimizer=config.optim.name,
        ema=config.optim.ema_decay is not None,
        world_size=decisions.world_size,
    )


def model_state(
    num_parameters: int,
    *,
    engine: Literal["single", "ddp", "fsdp2", "deepspeed"],
    zero_stage: int = 0,
    params: str = "fp32",
    optimizer: str = "adamw",
    ema: bool = False,
    world_size: int = 1,
) -> ModelState:
    """Model state per device: the 2 + 2 + 12 bytes per parameter of the ZeRO paper (arXiv 1910.02054, section 3.1)
    for 16-bit weights with Adam, and 4 + 4 + 8 for fp32 weights.

    Sharding divides optimizer and masters from stage 1, gradients from stage 2, weights at stage 3; FSDP2 is stage 3
    with fp32 shards. DeepSpeed 0.19.8 keeps a second fp32 copy of its partition from stage 1 on, even of fp32 weights.
    """
    stage = 3 if engine == "fsdp2" else zero_stage if engine == "deepspeed" else 0
    width = 4 if engine == "fsdp2" else _BYTES[params]
    has_masters = width < 4 or (engine == "deepspeed" and stage > 0)
    shard = -(-num_parameters // world_size)
    return ModelState(
        weights=width * (shard if stage == 3 else num_parameters),
        gradients=width * (shard if stage >= 2 else num_parameters),
        masters=4 * (shard if stage >= 1 else num_parameters) if has_masters else 0,
        optimizer=4 * _STATES[optimizer] * (shard if stage >= 1 else num_parameters),
        ema=4 * (shard if stage >= 1 else num_parameters) if ema else 0,
    )


def activation_bytes(
    shape: ViTShape,
    micro_batch_size: int,
    *,
    compute: str = "fp32",
    params: str = "fp32",
    checkpointing: bool = False,
) -> int | None:
    """What forward keeps for backward, in eager mode with fused attention; None where the blocks are not standard.

    Per block and token, counted from the tensors that autograd keeps (D the width, H the MLP's): the inputs of both
    norms, the inputs of qkv and fc1, q, k and v, attention's output, and the MLP before and after its activation:
    8 D + 2 H elements. Under autocast the two norms work in fp32, and the casts of the weights are kept too. With
    checkpointing each block keeps its input, and one block at a time is kept whole. torch.compile keeps less.
    """
    all_weights = num_parameters(shape)
    if all_weights is None:
        return None
    dim, hidden, width = shape.embed_dim, shape.mlp_hidden, _BYTES[compute]
    residual = _BYTES[params] if width < 4 else 4
    per_token = 2 * dim * residual + (6 * dim + 2 * hidden) * width
    block = shape.num_tokens * per_token
    inputs = shape.depth * shape.num_tokens * dim * residual
    blocks = inputs + block if checkpointing else shape.depth * block
    casts = 0
    if residual > width:
        casts = width * (all_weights - (shape.depth - 1) * block_parameters(shape) * checkpointing)
    image = shape.in_chans * shape.img_size**2 * width
    # Between a stem's convolutions: what its norm reads, what its activation reads, what the next convolution reads.
    stem = sum(conv.out_chans * conv.edge**2 for conv in stem_convs(shape)[:-1]) * 3 * width
    # Its input, and its output, of which the head reads a view; under autocast the head reads a small cast instead.
    last_norm = shape.num_tokens * dim * residual * (1 if residual > width else 2)
    return micro_batch_size * (blocks + image + stem + last_norm) + casts
