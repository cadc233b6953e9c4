"""Decide what a config leaves open (engine, batch, precision) and refuse what cannot work together. Torch-free.

In: a RunConfig, the number of processes and the kind of device. Out: Decisions, with the reason of each, which
`vitscale show` prints and every layer above reads instead of the raw fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from vitscale.config.augment import check_augmentation, check_normalisation
from vitscale.config.balance import fixed_shares
from vitscale.config.batch import BatchTriple, solve_batch
from vitscale.config.performance import FastPaths, Place, Reason, fast_paths
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError, DeviceError

EngineName = Literal["single", "ddp", "fsdp2", "deepspeed"]


class Precision(NamedTuple):
    """A resolved precision triple; only runs with equal triples are compared."""

    compute: str
    params: str
    reduce: str

    @property
    def meaning(self) -> str:
        """What people call this triple."""
        if self.compute in ("fp32", "tf32"):
            return self.compute
        if self.compute == "float8":
            return "float8 layers over bf16 weights with fp32 masters"
        if self.params == "fp32":
            return f"{self.compute} autocast over fp32 weights"
        return f"{self.params} weights with fp32 masters"


@dataclass(frozen=True)
class Decisions:
    """A config with nothing left open that can be known without the data and the device.

    shares: images of a micro-step by rank. Their sum is micro_batch_size x world_size; with parallel.balance=auto they
    are equal until the ranks have been measured. unit: images that stay on one rank, 2 where pairs are mixed.
    """

    engine: EngineName
    zero_stage: int
    batch: BatchTriple
    precision: Precision
    world_size: int
    fast: FastPaths
    shares: tuple[int, ...]
    unit: int
    reasons: tuple[Reason, ...]

    @property
    def static_shapes(self) -> bool:
        """Short micro-batches are padded with images of weight 0, so that every shape is the same."""
        return self.fast.compile or self.fast.cuda_graph


class Pair(NamedTuple):
    """Whether an optimizer works under an engine and whether its state can be loaded by another world size."""

    legal: bool
    resharding: bool
    why: str = ""


_OK = Pair(True, True)
_FLOAT8 = (
    "while training, the blocks' linear layers multiply in float8: e4m3 inputs and weights, e5m2 gradients, one scale "
    "per tensor, found at each use; embedding, norms, attention and head stay bf16, evaluation and export too; meant "
    "for ViT-L and larger with performance.compile: elsewhere the casts can cost more than the products gain"
)


def optimizer_pair(optimizer: str, engine: str, zero_stage: int) -> Pair:
    """The legal table of optimizer and engine.

    DeepSpeed's universal checkpoint knows fp32, exp_avg and exp_avg_sq only, so SGD's momentum cannot be resharded
    under ZeRO 1-3. LAMB's trust ratio and Muon's orthogonalisation need whole tensors, which ZeRO's flat partitions
    and FSDP2's shards are not.
    """
    sharded = engine == "fsdp2" or (engine == "deepspeed" and zero_stage > 0)
    if optimizer in ("lamb", "muon") and sharded:
        what = "trust ratio" if optimizer == "lamb" else "orthogonalisation"
        return Pair(False, False, f"its {what} needs whole tensors, which a sharded engine does not keep")
    if optimizer == "sgd" and engine == "deepspeed" and zero_stage > 0:
        return Pair(True, False, "DeepSpeed's universal checkpoint knows only fp32, exp_avg and exp_avg_sq")
    return _OK


def decide(config: RunConfig, *, world_size: int, device_type: str | None = None) -> Decisions:
    """Resolve what is open for `world_size` processes; device_type is "cpu", "cuda" or None (not known yet).

    Raises ConfigError for combinations that cannot run, DeviceError for a precision the device cannot do.
    """
    engine, why_engine = _engine(config, world_size)
    stage = config.parallel.zero_stage
    if stage and engine != "deepspeed":
        raise ConfigError(
            f"parallel.zero_stage={stage} has no effect with engine {engine}; set parallel.engine=deepspeed, or drop it"
        )
    if config.deepspeed and engine != "deepspeed":
        raise ConfigError(f"the deepspeed section has no effect with engine {engine}; set parallel.engine=deepspeed")
    batch = solve_batch(config.train, world_size)
    precision = _precision(config, engine)
    _check_device(precision, engine, device_type)
    _check_optimizer(config, engine, stage, precision)
    fast, why_fast = fast_paths(config, Place(engine, stage, world_size, device_type))
    _check_mixing(config, batch)
    unit = 2 if _mixes(config) else 1
    shares, why_shares = _shares(config, batch, world_size, unit)
    check_augmentation(config.data, config.model.in_chans)
    check_normalisation(config.data, config.model.in_chans)
    reasons = (
        Reason("parallel.engine", engine + (f" zero_stage {stage}" if engine == "deepspeed" else ""), why_engine),
        *_batch_reasons(config, batch, world_size),
        Reason("precision", "/".join(precision), precision.meaning),
        *([Reason("precision.compute", "float8", _FLOAT8)] if precision.compute == "float8" else []),
        *why_fast,
        *why_shares,
        _data_reason(config),
    )
    return Decisions(engine, stage, batch, precision, world_size, fast, shares, unit, reasons)


def _engine(config: RunConfig, world_size: int) -> tuple[EngineName, str]:
    asked = config.parallel.engine
    if asked == "auto":
        if config.parallel.zero_stage or config.deepspeed:
            return "deepspeed", "parallel.zero_stage or the deepspeed section asks for it"
        if world_size == 1:
            return "single", "auto: one process"
        return "ddp", f"auto: {world_size} processes"
    if asked == "single" and world_size > 1:
        raise ConfigError(
            f"parallel.engine=single runs one process, not {world_size}; use ddp, fsdp2 or deepspeed, or --nproc 1"
        )
    return asked, "as asked"


def _batch_reasons(config: RunConfig, batch: BatchTriple, world_size: int) -> Iterator[Reason]:
    given = [name for name in batch._fields if getattr(config.train, name) is not None]
    for name, value in batch._asdict().items():
        if name not in given:
            why = f"{' and '.join(given) or 'nothing'} given; data-parallel size {world_size}"
            yield Reason(f"train.{name}", str(value), why)


def _shares(
    config: RunConfig, batch: BatchTriple, world_size: int, unit: int
) -> tuple[tuple[int, ...], tuple[Reason, ...]]:
    balance, even = config.parallel.balance, (batch.micro_batch_size,) * world_size
    if balance == "none":
        return even, ()
    if balance == "auto":
        why = "measured when training starts" if world_size > 1 else "one process has all"
        return even, (Reason("parallel.balance", "auto", why),)
    shares = fixed_shares(balance, batch.micro_batch_size, world_size, unit)
    words = ", ".join(map(str, shares))
    return shares, (Reason("parallel.balance", words, "images of each micro-step by rank, as weighted"),)


def _mixes(config: RunConfig) -> bool:
    return bool(config.data.mixup or config.data.cutmix)


def _data_reason(config: RunConfig) -> Reason:
    on_device = config.performance.data_on_device
    why = "a training set in memory moves to the GPU if it takes less than an eighth of the free memory there"
    return Reason("performance.data_on_device", str(on_device).lower(), why if on_device else "as asked")


def _precision(config: RunConfig, engine: str) -> Precision:
    asked = config.precision
    compute = asked.compute
    default = {"bf16": "bf16", "float8": "bf16", "fp16": "fp16" if engine == "deepspeed" else "fp32"}.get(
        compute, "fp32"
    )
    params = asked.params or default
    reduce = asked.reduce or params
    triple = Precision(compute, params, reduce)
    problem = _precision_problem(triple, engine)
    if problem:
        raise ConfigError(
            f"precision.compute={compute} with precision.params={params} and precision.reduce={reduce} "
            f"is not possible with engine {engine}: {problem}"
        )
    return triple


def _precision_problem(triple: Precision, engine: str) -> str | None:
    compute, params, reduce = triple
    if compute == "float8" and engine == "deepspeed":
        return "float8 layers have not been proved under DeepSpeed's own casts; use single, ddp or fsdp2"
    if compute == "float8" and params != "bf16":
        return "float8 layers cast bf16 weights; leave precision.params unset"
    if params != "fp32" and params != compute and compute != "float8":
        return f"weights in {params} need precision.compute={params}"
    if params == "fp16" and engine != "deepspeed":
        return "fp16 weights are DeepSpeed's way; leave precision.params at fp32"
    if compute == "fp16" and params == "fp32" and engine == "deepspeed":
        return "DeepSpeed's fp16 keeps fp16 weights; leave precision.params unset"
    if reduce not in ("fp32", params) and not (engine == "ddp" and reduce == "bf16"):
        return f"gradients of {params} weights are reduced in {' or '.join(dict.fromkeys((params, 'fp32')))}"
    if reduce != params and params != "fp32" and engine in ("ddp", "single"):
        return f"gradients of {params} weights are reduced in {params} here"
    return None


def _check_device(precision: Precision, engine: str, device_type: str | None) -> None:
    if device_type != "cpu":
        return
    if precision.compute == "tf32":
        raise DeviceError("precision.compute=tf32 needs an NVIDIA GPU; use fp32 or bf16 on the CPU")
    if precision.compute == "float8":
        raise DeviceError(
            "precision.compute=float8 needs an NVIDIA GPU since Ada or Hopper; use fp32 or bf16 on the CPU"
        )
    if precision.compute == "fp16" and engine == "deepspeed":
        raise DeviceError("DeepSpeed has no fp16 on the CPU; use precision.compute=bf16 or fp32")


def _check_optimizer(config: RunConfig, engine: str, stage: int, precision: Precision) -> None:
    name = config.optim.name
    pair = optimizer_pair(name, engine, stage)
    if not pair.legal:
        where = engine + (f" zero_stage {stage}" if engine == "deepspeed" else "")
        raise ConfigError(
            f"optim.name={name} does not work with engine {where}: {pair.why}; use adamw or sgd, "
            "or engine single or ddp"
        )
    if name == "muon" and engine == "deepspeed" and precision.params != "fp32":
        raise ConfigError(
            "optim.name=muon needs fp32 weights under DeepSpeed; set precision.params=fp32 or another optimizer"
        )


def _check_mixing(config: RunConfig, batch: BatchTriple) -> None:
    if _mixes(config) and batch.micro_batch_size % 2:
        raise ConfigError(
            f"data.mixup and data.cutmix mix pairs of images, so train.micro_batch_size={batch.micro_batch_size} "
            "must be even"
        )
