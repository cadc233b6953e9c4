"""Bytes that one rank sends per update under each engine, in closed form. Torch-free.

Of the model's own exchange only: gradients and weights, not the loss's sum, norms, flags or evaluation. A ring sends
(n - 1) / n of the tensor in an all-gather or a reduce-scatter, and twice that in an all-reduce, which is the one after
the other (nccl-tests, doc/PERFORMANCE.md); trees and switches that add in the network may send less. Padding to equal
shards is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.estimate.vit import ViTShape, block_parameters, expected_classes, num_parameters, shape_of, stem_convs

_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
PERSISTENT = 100_000  # DeepSpeed's stage3_param_persistence_threshold: smaller tensors stay whole on every rank
REUSE_DISTANCE = 10**9  # its stage3_max_reuse_distance: what is needed again this soon is not let go after forward


class Volume(NamedTuple):
    """Bytes sent by one rank per update, and how they come about (G: gradients, W: weights, in bytes; n ranks)."""

    bytes_per_update: int
    formula: str


def communication_of(config: RunConfig, decisions: Decisions) -> Volume | None:
    """What a run sends; None where the closed forms do not know the model, or some of it is frozen."""
    classes = expected_classes(config.model, config.data)
    shape = shape_of(config.model, classes)
    parameters = num_parameters(shape)
    if parameters is None or not classes or config.model.freeze:
        return None
    zero = config.deepspeed.get("zero_optimization", {})
    kept = parameters - _large_parameters(shape, _setting(zero, "param_persistence_threshold", PERSISTENT))
    if decisions.engine == "fsdp2":
        kept = parameters - shape.depth * block_parameters(shape)
    return sent_per_update(parameters, kept, decisions, _setting(zero, "max_reuse_distance", REUSE_DISTANCE))


def _setting(zero: dict[str, Any], name: str, default: int) -> int:
    """DeepSpeed takes these keys with and without a prefix."""
    return int(zero.get(f"stage3_{name}", zero.get(name, default)))


def gradient_bytes(config: RunConfig, decisions: Decisions) -> int | None:
    """Bytes of all gradients as they are reduced; None where they are not known."""
    classes = expected_classes(config.model, config.data)
    parameters = num_parameters(shape_of(config.model, classes))
    if parameters is None or not classes or config.model.freeze:
        return None
    return parameters * _BYTES[decisions.precision.reduce]


def sent_per_update(parameters: int, kept: int, decisions: Decisions, reuse_distance: int = REUSE_DISTANCE) -> Volume:
    """Of a model whose parameters are all trained.

    kept: parameters that stay whole once gathered. FSDP2 keeps what is outside the blocks from forward to backward;
    DeepSpeed's stage 3 keeps small tensors for good, and gathers them once after the step. The others it gathers for
    forward, and again for backward only if more than `reuse_distance` parameters are used in between, which takes a
    model of half as many. Stages 1 and 2 of DeepSpeed 0.19.8 reduce with an all-reduce of each bucket, of which a rank
    then keeps its own part.
    """
    n, engine, stage = decisions.world_size, decisions.engine, decisions.zero_stage
    steps = decisions.batch.grad_accum_steps
    if n == 1 or engine == "single":
        return Volume(0, "one process sends nothing")
    width = _BYTES[decisions.precision.params]
    gradients, weights, whole = parameters * _BYTES[decisions.precision.reduce], parameters * width, kept * width
    if engine == "fsdp2":
        total = steps * (2 * weights - whole + gradients)
        return _volume(total, n, f"{steps} x (2 W - W outside blocks + G)")
    if engine == "deepspeed" and stage == 3:
        again = max(0, parameters - kept - reuse_distance // 2) * width
        total = steps * (weights - whole + again + gradients) + whole
        times = "W of large tensors" if not again else "W of large tensors + W needed again late"
        return _volume(total, n, f"{steps} x ({times} + G) + W of small tensors")
    if engine == "deepspeed" and stage > 0:
        reductions = steps if stage == 2 else 1
        return _volume(2 * reductions * gradients + weights, n, f"{reductions} x 2 G + W")
    return _volume(2 * gradients, n, "2 G")


def bus_bandwidth(num_bytes: int, seconds: float, world_size: int) -> float:
    """Bytes per second over each link during an all-reduce, whatever the number of ranks (nccl-tests' `busbw`)."""
    return num_bytes / seconds * 2 * (world_size - 1) / world_size


def _volume(total: int, n: int, formula: str) -> Volume:
    return Volume(total * (n - 1) // n, f"({formula}) x {n - 1}/{n}")


def _large_parameters(shape: ViTShape, threshold: int) -> int:
    """Parameters in tensors of more than `threshold` elements: of a ViT only matrices and position embeddings are."""
    dim, hidden = shape.embed_dim, shape.mlp_hidden
    positions = shape.num_patches + (0 if shape.no_embed_class else shape.num_prefix_tokens)
    block = (3 * dim * dim, dim * dim, dim * hidden, hidden * dim)
    outside = (
        *(conv.weights for conv in stem_convs(shape)),
        positions * dim if shape.pos_embed == "learn" else 0,
        dim * shape.num_classes,
    )
    large = sum(size for size in block if size > threshold)
    return shape.depth * large + sum(size for size in outside if size > threshold)
