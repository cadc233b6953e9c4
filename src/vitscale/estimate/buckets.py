"""What an update sends, in which pieces, and after which share of backward each piece can go. Torch-free.

In: a config and what was decided of it. Out: Traffic, in buckets in the order in which they are reduced. DDP fills them
in the order in which gradients arrived in the first backward, closes one as soon as it holds its limit (1 MiB for the
first, then 25 MiB: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb; torch/csrc/distributed/c10d/reducer.cpp,
compute_bucket_assignment_by_size) and reduces it as soon as its last gradient is there, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.estimate.communication import ELEMENT_BYTES, communication_of, gradient_bytes, ring_factor
from vitscale.estimate.vit import ViTShape, block_parameters, expected_classes, num_parameters, shape_of

MIB = 2**20
FIRST_BUCKET_BYTES = 1 * MIB
BUCKET_BYTES = 25 * MIB


class Bucket(NamedTuple):
    """One all-reduce. ready: the share of backward's time after which it can begin."""

    num_bytes: int
    ready: float


class Traffic(NamedTuple):
    """What one update sends, as all-reduces that take as long.

    each_micro_step: all of it goes at every micro-step, so that accumulation saves nothing. bound: the engine hides
    some of it behind computation, in a way that is not modelled: the time is at most this.
    """

    buckets: tuple[Bucket, ...]
    each_micro_step: bool = False
    bound: bool = False


NOTHING = Traffic(())


def traffic_of(config: RunConfig, decisions: Decisions) -> Traffic | None:
    """The traffic of a run; None where the closed forms do not know the model, or some of it is frozen.

    DeepSpeed's stage 0 reduces when backward has ended. Its other stages and FSDP2 send weights too, at other moments.
    """
    if decisions.world_size == 1:
        return NOTHING
    whole = gradient_bytes(config, decisions)
    if whole is None:
        return None
    if decisions.engine == "ddp":
        shape = shape_of(config.model, expected_classes(config.model, config.data))
        buckets = ddp_buckets(shape, ELEMENT_BYTES[decisions.precision.reduce])
        return None if buckets is None else Traffic(buckets)
    if decisions.zero_stage == 0 and decisions.engine == "deepspeed":
        return Traffic((Bucket(whole, 1.0),))
    volume = communication_of(config, decisions)
    assert volume is not None
    each = decisions.engine == "fsdp2" or decisions.zero_stage > 1
    steps = decisions.batch.grad_accum_steps if each else 1
    size = round(volume.bytes_per_update / steps / ring_factor(decisions.world_size))
    return Traffic((Bucket(size, 1.0),), each_micro_step=each, bound=True)


class _Piece(NamedTuple):
    """One module of the model: the elements of its tensors, and the FLOPs of its backward for one image."""

    tensors: tuple[int, ...]
    flops: float


def ddp_buckets(shape: ViTShape, bytes_per_element: int) -> tuple[Bucket, ...] | None:
    """The buckets; None where the blocks are not standard. Backward's time is shared out by matrix products."""
    total = num_parameters(shape)
    if total is None:
        return None
    pieces = list(_pieces(shape, total))
    work = sum(piece.flops for piece in pieces)
    buckets: list[Bucket] = []
    size, limit, done = 0, FIRST_BUCKET_BYTES, 0.0
    for piece in pieces:
        done += piece.flops
        for elements in piece.tensors:
            size += elements * bytes_per_element
            if elements and size >= limit:
                buckets.append(Bucket(size, done / work))
                size, limit = 0, BUCKET_BYTES
    if size:
        buckets.append(Bucket(size, 1.0))
    return tuple(buckets)


def _pieces(shape: ViTShape, total: int) -> Iterator[_Piece]:
    """The modules in the order in which backward leaves them: the head first, the patch embedding last.

    A linear layer's backward is two products, by its input and by its weight, and gives the bias's gradient first;
    images need no gradient. What is small and not everywhere (tokens, layer scale, q and k norms) goes with its
    neighbour.
    """
    dim, classes = shape.embed_dim, shape.num_classes
    embed = shape.in_chans * shape.patch_size**2 * dim
    blocks = shape.depth * block_parameters(shape)
    norm = 2 * dim * shape.final_norm
    yield _Piece((classes, dim * classes, norm), 4 * dim * classes)
    for _ in range(shape.depth):
        yield from _block(shape)
    rest = total - blocks - (dim + 1) * classes - norm - embed
    yield _Piece((max(0, rest - dim), embed, min(dim, max(0, rest))), 2 * shape.num_patches * embed)


def _block(shape: ViTShape) -> Iterator[_Piece]:
    dim, hidden = shape.embed_dim, shape.mlp_hidden
    product, mlp, square = 4 * shape.num_tokens, dim * hidden, dim * dim
    small = block_parameters(shape) - 2 * mlp - 4 * square
    mlp_bias = (hidden + dim) * shape.proj_bias
    qkv_bias = small - mlp_bias - 4 * dim - dim * shape.proj_bias
    yield _Piece((dim * shape.proj_bias, mlp), product * mlp)
    yield _Piece((hidden * shape.proj_bias, mlp, 2 * dim), product * mlp)
    yield _Piece((dim * shape.proj_bias, square), product * square)
    yield _Piece((), 8 * shape.num_tokens**2 * dim)  # scores and weighted sum
    yield _Piece((qkv_bias, 3 * square, 2 * dim), product * 3 * square)
