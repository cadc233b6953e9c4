"""What `vitscale bench` runs side by side: our engine and the loops that people would write instead. Torch-free.

A Case is one row: who, in which precision, compiled or not. A Spec is the work, the same for all rows of a bench. Only
rows with the same precision triple are compared; so our engine runs once in the config's triple, and once in each
triple that a peer brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError, DeviceError
from vitscale.estimate.vit import check_resolution

OURS = "vitscale"
AUTOCAST = ("bf16", "fp32", "fp32")
MASTERS = ("bf16", "bf16", "bf16")
FSDP_MASTERS = ("bf16", "bf16", "fp32")
FP32 = ("fp32", "fp32", "fp32")
NO_DEEPSPEED = "deepspeed is not installed"


@dataclass(frozen=True)
class Spec:
    """The work of one update on each rank, with random images that stay on the device."""

    model: str
    model_kwargs: dict[str, Any]
    in_chans: int
    num_classes: int
    img_size: int
    micro_batch_size: int
    lr: float


@dataclass(frozen=True)
class Case:
    """One row. problem: why it cannot be measured here; then it is shown as not measured."""

    who: str
    peer: str | None  # the module under bench.peers; None: ours
    precision: tuple[str, str, str]
    compile: bool = False
    cuda_graph: bool = False
    zero_stage: int | None = None
    config: dict[str, Any] | None = None  # ours: the RunConfig
    problem: str | None = None

    @property
    def name(self) -> str:
        """For folders: who and how."""
        return "_".join([self.title.replace(" + ", "_").replace(" ", "-"), "-".join(self.precision)])

    @property
    def title(self) -> str:
        """For tables: who and how."""
        return " + ".join([self.who, *("compile",) * self.compile, *("CUDA graph",) * self.cuda_graph])


def spec_of(config: RunConfig, decisions: Decisions, num_classes: int) -> Spec:
    """The work that a config names, for loops that know nothing of configs."""
    model = config.model
    if model.stem != "patch":
        raise ConfigError("model.stem=conv is not what the peers of vitscale bench build; set model.stem=patch")
    size, _ = check_resolution(model)
    shape: dict[str, Any] = {"patch_size": model.patch_size, "embed_dim": model.embed_dim, "depth": model.depth}
    shape |= {"num_heads": model.num_heads, "global_pool": model.global_pool}
    given = {key: value for key, value in shape.items() if value is not None}
    micro = decisions.batch.micro_batch_size
    return Spec(model.name, {**given, **model.kwargs}, model.in_chans, num_classes, size, micro, config.optim.lr)


def cases(config: RunConfig, world_size: int, device_type: str, only: Sequence[str] = ()) -> list[Case]:
    """Our rows first, then the peers', in the order of the table.

    only: words, of which a row's title must hold one. Raises ConfigError if no row is left.
    """
    peers = list(_peers(config, world_size, device_type))
    triples = dict.fromkeys(row.precision for row in peers)
    if config.precision.compute == "float8":  # no peer brings this one
        own = decide(config, world_size=world_size).precision
        triples[own.compute, own.params, own.reduce] = None
    ours = [_ours(config, triple, world_size, device_type) for triple in triples]
    rows = [*ours, *_our_engines(config, world_size, device_type), *peers]
    kept = [row for row in rows if not only or any(word.lower() in row.title.lower() for word in only)]
    if not kept:
        raise ConfigError(f"--only {', '.join(only)} fits none of the rows: {', '.join(row.title for row in rows)}")
    return kept


def _peers(config: RunConfig, world_size: int, device_type: str) -> Iterator[Case]:
    low = config.precision.compute in ("bf16", "float8")
    simple = AUTOCAST if low else FP32
    compiled = (False, True) if device_type == "cuda" else (False,)  # compile gives nothing on a few cores
    for compile_ in compiled:
        if world_size == 1:
            yield Case("plain timm loop", "timm_loop", simple, compile_)
        yield Case("raw DDP", "raw_ddp", simple, compile_)
    yield Case("raw FSDP2", "raw_fsdp2", FSDP_MASTERS if low else FP32)
    missing = None if find_spec("deepspeed") else NO_DEEPSPEED
    for stage in range(4):
        masters = MASTERS if low else FP32
        yield Case(f"raw DeepSpeed ZeRO {stage}", "raw_deepspeed", masters, zero_stage=stage, problem=missing)
    yield Case("torchtitan", None, simple, problem="its trainer takes no Vision Transformer")


def _ours(config: RunConfig, triple: tuple[str, str, str], world_size: int, device_type: str) -> Case:
    """Our engine in one triple; where the config's engine cannot do that one, DDP (or one process) does."""
    compute, params, reduce = triple
    tree = config.model_dump(mode="json")
    tree["precision"] = {"compute": compute, "params": params, "reduce": reduce}
    for engine in (config.parallel.engine, "auto", "fsdp2"):
        tree["parallel"]["engine"] = engine
        row = _our_row(tree, triple, world_size, device_type)
        if row.problem is None:
            break
    return row


def _our_engines(config: RunConfig, world_size: int, device_type: str) -> Iterator[Case]:
    """Our other engines, in the triple that DeepSpeed trains in."""
    triple = MASTERS if config.precision.compute in ("bf16", "float8") else FP32
    for engine, stage in (("fsdp2", 0), *(("deepspeed", stage) for stage in range(4))):
        if (engine, stage) == (config.parallel.engine, config.parallel.zero_stage):
            continue
        tree = config.model_dump(mode="json")
        tree["precision"] = dict(zip(("compute", "params", "reduce"), triple, strict=True))
        tree["parallel"] |= {"engine": engine, "zero_stage": stage}
        tree["deepspeed"] = config.deepspeed if engine == "deepspeed" else {}
        yield _our_row(tree, triple, world_size, device_type)


def _our_row(tree: dict[str, Any], triple: tuple[str, str, str], world_size: int, device_type: str) -> Case:
    parallel = tree["parallel"]
    stage = f" ZeRO {parallel['zero_stage']}" if parallel["engine"] == "deepspeed" else ""
    try:
        decisions = decide(build_config(tree), world_size=world_size, device_type=device_type)
    except (ConfigError, DeviceError) as error:
        return Case(f"{OURS} {parallel['engine']}{stage}", None, triple, problem=str(error))
    who, fast = f"{OURS} {decisions.engine}{stage}", decisions.fast
    missing = None if find_spec("deepspeed") or decisions.engine != "deepspeed" else NO_DEEPSPEED
    return Case(who, None, triple, fast.compile, fast.cuda_graph, config=deepcopy(tree), problem=missing)


def payload_of(case: Case, spec: Spec, *, device: str, warmup: int, updates: int, trace: int) -> dict[str, Any]:
    """What the worker reads."""
    lengths = {"warmup": warmup, "updates": updates, "trace": trace}
    return {"case": asdict(case), "spec": asdict(spec), "device": device, **lengths}
