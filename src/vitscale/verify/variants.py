"""What the proof of equality runs: variants of one config, the jobs that hold them, and the bounds. Torch-free.

A variant is a config of 20 updates. A job is one engine, ZeRO stage and world size, which runs all its variants in
one process group. Variants with the same `mathematics` must give the same figures, whatever the engine and the
accumulation; the reference is one process with accumulation 1, the noise floor one process with accumulation 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.performance import FastPaths, Place, fast_paths
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError

UPDATES = 20
CLIP_LIMIT = 0.1  # below any gradient norm of the first updates, so that clipping is active
ENGINES = ("ddp", "fsdp2", "deepspeed:0", "deepspeed:1", "deepspeed:2", "deepspeed:3")
CHOICES = ("single", *ENGINES)  # single on one process is the reference itself, unless a switch of performance.* is on


class Bounds(NamedTuple):
    """Limits of relative differences: per tensor of the final weights, of the losses, of the first gradients."""

    weights: float | None
    losses: float
    gradients: float


BOUNDS = {"sgd": Bounds(1e-5, 1e-6, 1e-5), "adamw": Bounds(None, 1e-4, 1e-5), "fp64": Bounds(None, 1e-10, 1e-10)}
FLOOR_FACTOR = 10.0


@dataclass(frozen=True)
class Variant:
    """One run of the proof. tail: images in the last window of an epoch (fewer than ranks: some have none). balance:
    weights of the ranks; none: all take the same."""

    optimizer: str = "sgd"
    accum: int = 1
    clip: bool = False
    mixing: bool = False
    double: bool = False
    tail: int = 21
    checkpointing: bool = False
    compile: bool = False
    cuda_graph: bool = False
    balance: tuple[int, ...] = ()

    @property
    def mathematics(self) -> tuple[Any, ...]:
        """What the figures may depend on."""
        return (self.optimizer, self.clip, self.mixing, self.double, self.tail)

    @property
    def name(self) -> str:
        """For tables and files."""
        words = [self.optimizer, f"accum{self.accum}"]
        words += [w for w in ("clip", "mixing", "double", "checkpointing", "compile", "cuda_graph") if getattr(self, w)]
        words += [f"tail{self.tail}"] if self.tail != Variant.tail else []
        words += [f"balance{'-'.join(map(str, self.balance))}"] if self.balance else []
        return "-".join(words)

    @property
    def bounds(self) -> Bounds:
        """The bounds of this kind of proof."""
        return BOUNDS["fp64" if self.double else self.optimizer]

    def plain(self, accum: int) -> Variant:
        """The same mathematics on one process: the reference (accum 1) or the noise floor (accum 2)."""
        return replace(self, accum=accum, checkpointing=False, compile=False, cuda_graph=False, balance=())


def variants(config: RunConfig, engine: str, fast: FastPaths, world_size: int = 1) -> list[Variant]:
    """The variants of a job: accumulation 1, 2, 4, a short tail, clipping, mixing with drop path, AdamW, fp64, the
    fast paths that the config takes on this engine, and ranks with unequal shares."""
    found = [
        Variant(),
        Variant(accum=2),
        Variant(accum=4),
        Variant(tail=1),
        Variant(clip=True),
        Variant(accum=2, mixing=True),
        Variant("adamw"),
        Variant("adamw", accum=2, clip=True),
        Variant(checkpointing=True),
    ]
    if fast.compile:
        found.append(Variant(compile=True))
    if fast.cuda_graph:
        # torch has no fused SGD step over FSDP2's shards
        whole = Variant("adamw" if engine == "fsdp2" else "sgd", compile=fast.compile, cuda_graph=True)
        found += [whole, replace(whole, accum=2, mixing=True), replace(whole, optimizer="adamw", accum=2, clip=True)]
    if engine != "deepspeed" and config.precision.compute == "fp32":
        found.append(Variant("adamw", double=True))
    return found + list(_unequal(world_size))


def _unequal(world_size: int) -> Iterator[Variant]:
    """Shares 2:1 and 3:1 on two ranks, 4:2:1:1 on four; among others the first rank takes two or three parts."""
    if world_size == 1:
        return
    rest = (2, 1, 1) if world_size == 4 else (1,) * (world_size - 1)
    less, more = (((4, *rest),) * 2) if world_size == 4 else ((2, *rest), (3, *rest))
    yield Variant(balance=less)
    yield Variant(tail=1, balance=more)
    yield Variant(accum=2, mixing=True, balance=more)
    yield Variant("adamw", accum=2, clip=True, balance=less)


@dataclass(frozen=True)
class ProofJob:
    """One engine at one world size with its variants; `problem` says why it cannot run."""

    engine: str
    zero_stage: int
    world_size: int
    batch: int  # global batch size, the reference's too
    variants: tuple[Variant, ...]
    problem: str | None = None
    is_reference: bool = False

    @property
    def name(self) -> str:
        """For tables and folders."""
        if self.is_reference:
            return "reference"
        stage = f"-zero{self.zero_stage}" if self.engine == "deepspeed" else ""
        return f"{self.engine}{stage}-x{self.world_size}"

    def payload(self, config: RunConfig, device: str | None) -> dict[str, Any]:
        """What the worker reads."""
        runs = [{"variant": asdict(v), "name": v.name, "config": self.tree(config, v)} for v in self.variants]
        return {"runs": runs, "device": device}

    def tree(self, config: RunConfig, variant: Variant) -> dict[str, Any]:
        """The config of one variant as plain data."""
        tree = config.model_dump(mode="json")
        tree["train"] |= {
            "global_batch_size": self.batch,
            "grad_accum_steps": variant.accum,
            "micro_batch_size": None,
            "epochs": None,
            "max_updates": UPDATES,
        }
        tree["data"] |= {"train_limit": 2 * self.batch + variant.tail}
        tree["data"] |= {"mixup": 0.8 if variant.mixing else 0.0, "cutmix": 0.0}
        tree["model"]["drop_path"] = 0.2 if variant.mixing else 0.0
        tree["model"]["dropout"] = 0.0
        tree["optim"] |= {"name": variant.optimizer, "lr": 0.05 if variant.optimizer == "sgd" else 1e-3, "eps": 1e-6}
        tree["optim"] |= {"clip_grad": CLIP_LIMIT if variant.clip else None, "lr_scaling": "none", "min_lr": 0.0}
        tree["parallel"] |= {"engine": self.engine, "zero_stage": self.zero_stage}
        tree["parallel"]["balance"] = list(variant.balance) or "none"
        tree["performance"] |= {"checkpointing": variant.checkpointing, "compile": variant.compile}
        tree["performance"] |= {"cuda_graph": variant.cuda_graph}
        if self.is_reference:
            tree["performance"]["attention"] = "default"
        tree["deepspeed"] = _with_whole_sharding(tree["deepspeed"], self) if self.engine == "deepspeed" else {}
        return tree


def global_batch_size(world_size: int) -> int:
    """Divisible by world size x accumulation 4, and by pairs at accumulation 2."""
    return 8 * max(world_size, 4)


def _with_whole_sharding(section: dict[str, Any], job: ProofJob) -> dict[str, Any]:
    """ZeRO-3 leaves small tensors whole by default; a tiny model would then prove nothing."""
    if job.zero_stage < 3:
        return section
    zero = {"stage3_param_persistence_threshold": 0, **section.get("zero_optimization", {})}
    return {**section, "zero_optimization": zero}


def proof_jobs(
    config: RunConfig,
    nproc: int,
    engines: Sequence[str] = ENGINES,
    only: Sequence[str] = (),
    device_type: str | None = None,
) -> list[ProofJob]:
    """The reference first, then one job per engine; `only` names the variants to keep (all if empty).

    Raises ConfigError where the reference or no engine can run; else an engine that cannot is a job with a problem.
    """
    jobs = [_checked(config, _kept(job, only)) for job in _engine_jobs(config, nproc, engines, device_type)]
    mathematics: dict[tuple[Any, ...], Variant] = {}
    for job in jobs:
        for variant in job.variants:
            mathematics.setdefault(variant.mathematics, variant)
    plain = [variant.plain(accum) for variant in mathematics.values() for accum in (1, 2)]
    reference = ProofJob("single", 0, 1, global_batch_size(nproc), tuple(plain), is_reference=True)
    if not plain:
        raise ConfigError(str(jobs[0].problem))
    decide(build_config(reference.tree(config, plain[0])), world_size=1)
    return [reference, *jobs]


def _engine_jobs(config: RunConfig, nproc: int, engines: Sequence[str], device_type: str | None) -> Iterator[ProofJob]:
    for text in engines:
        if text not in CHOICES:
            raise ConfigError(f"--engine {text} is unknown; choose from {', '.join(CHOICES)}")
        engine, _, stage = text.partition(":")
        place = Place(engine, int(stage or 0), nproc, device_type)
        found = variants(config, engine, _fast_paths(config, place), nproc)
        yield ProofJob(engine, place.zero_stage, nproc, global_batch_size(nproc), tuple(found))


def _fast_paths(config: RunConfig, place: Place) -> FastPaths:
    """What the config takes on this engine; a graph that was asked for is for the engines that can have one."""
    switches = config.performance
    if switches.cuda_graph is True and place.engine == "deepspeed":
        switches = switches.model_copy(update={"cuda_graph": False})
    return fast_paths(config.model_copy(update={"performance": switches}), place)[0]


def _kept(job: ProofJob, only: Sequence[str]) -> ProofJob:
    kept = tuple(v for v in job.variants if not only or v.name in only)
    if not kept:
        names = ", ".join(v.name for v in job.variants)
        raise ConfigError(f"--variant {', '.join(only)} is not among the variants of {job.name}: {names}")
    return replace(job, variants=kept)


def _checked(config: RunConfig, job: ProofJob) -> ProofJob:
    """A job that this config's precision does not allow is skipped with the reason."""
    try:
        decide(build_config(job.tree(config, job.variants[0])), world_size=job.world_size)
    except ConfigError as error:
        return replace(job, problem=str(error), variants=())
    return job
