"""Which fast paths an update takes: compilation, a whole-step CUDA graph, the attention kernel. Torch-free.

In: a RunConfig, the engine and its stage, the number of processes, the kind of device. Out: FastPaths with nothing left
at `auto`, and for each of them the reason, which `vitscale show` prints. What was asked for by name and cannot be is
refused; what `auto` cannot have is left out.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import NamedTuple

from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError, DeviceError


class Reason(NamedTuple):
    """One decision: the key, what it became, and why."""

    key: str
    value: str
    why: str


class FastPaths(NamedTuple):
    """What is on. attention: a kernel's name, `auto` (measured where the device is) or `default` (torch's choice)."""

    compile: bool
    cuda_graph: bool
    attention: str


class Place(NamedTuple):
    """Where an update runs. device_type: "cpu", "cuda" or None (not known yet, taken for a GPU)."""

    engine: str
    zero_stage: int
    world_size: int
    device_type: str | None


def fast_paths(config: RunConfig, place: Place) -> tuple[FastPaths, tuple[Reason, ...]]:
    """Resolve `performance`.

    Raises ConfigError and DeviceError for a CUDA graph that was asked for and cannot be.
    """
    performance = config.performance
    if performance.cuda_graph is True:
        _check_graph(config, place)
    compiled, why_compile = _compile(config, place)
    graphed, why_graph = _graph(config, place)
    attention, why_attention = _attention(config, place)
    reasons = (
        Reason("performance.compile", _word(compiled), why_compile),
        Reason("performance.cuda_graph", _word(graphed), why_graph),
        Reason("performance.attention", attention, why_attention),
    )
    return FastPaths(compiled, graphed, attention), reasons


def fallbacks(config: RunConfig, reasons: tuple[Reason, ...]) -> tuple[str, ...]:
    """A sentence for each fast path that `auto` had to leave out, for a run on a GPU to say once."""
    asked = {f"performance.{name}": getattr(config.performance, name) for name in ("compile", "cuda_graph")}
    return tuple(
        f"{reason.key} is off ({reason.why.removeprefix('auto: ')})"
        for reason in reasons
        if asked.get(reason.key) == "auto" and reason.value == "false"
    )


def _word(value: bool) -> str:
    return str(value).lower()


def _compile(config: RunConfig, place: Place) -> tuple[bool, str]:
    asked = config.performance.compile
    if asked != "auto":
        return asked, _HOOKS if asked and _is_stage_3(place) and config.model.freeze else "as asked"
    obstacle = _compile_obstacle(config, place)
    if obstacle:
        return False, f"auto: {obstacle}"
    whole = place.engine != "fsdp2"  # ZeRO 3 is an obstacle
    return True, "auto: one graph of the whole model" if whole else "auto: block by block, between the engine's hooks"


_HOOKS = "with frozen weights DeepSpeed's hooks split a ZeRO-3 model into many small graphs: minutes to compile"
_UNPROVED = "ZeRO-3 compiles blocks between DeepSpeed's hooks, not proved on a GPU; performance.compile=true does it"


def _is_stage_3(place: Place) -> bool:
    return place.engine == "deepspeed" and place.zero_stage == 3


def _compile_obstacle(config: RunConfig, place: Place) -> str | None:
    if place.device_type == "cpu":
        return "little to gain on a CPU"
    if place.device_type == "cuda" and (missing := _compiler_missing()):
        return missing
    if _is_stage_3(place):
        return _HOOKS if config.model.freeze else _UNPROVED
    if config.deepspeed.get("zero_optimization", {}).get("memory_efficient_linear"):
        return "DeepSpeed's memory_efficient_linear loses gradients with it"
    if config.performance.checkpointing:
        return "not tried together with performance.checkpointing; performance.compile=true asks for it"
    if config.train.deterministic:
        return "train.deterministic=true wants the same kernels in every run"
    return None


def _compiler_missing() -> str | None:
    """What torch.compile needs on a GPU beside torch."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if "CC" not in os.environ and not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "Triton finds no C compiler (cc, gcc, clang or the variable CC)"
    return None


def _graph(config: RunConfig, place: Place) -> tuple[bool, str]:
    asked = config.performance.cuda_graph
    if asked != "auto":
        return asked, "as asked"
    obstacle = "the CPU has none" if place.device_type == "cpu" else _graph_obstacle(config, place)
    muon = config.optim.name == "muon"
    if not obstacle and (place.world_size > 1 or place.engine == "fsdp2" or muon):
        where = "with Muon" if muon else "with FSDP2" if place.engine == "fsdp2" else "on several GPUs"
        obstacle = f"not proved {where} yet; performance.cuda_graph=true asks for it"
    if not obstacle and config.precision.compute == "float8":
        obstacle = "not proved with float8 layers yet; performance.cuda_graph=true asks for it"
    if obstacle:
        return False, f"auto: {obstacle}"
    return True, "auto: a whole update is one launch, so that the host does not set the pace"


def _graph_obstacle(config: RunConfig, place: Place) -> str | None:
    if place.engine == "deepspeed":
        return "DeepSpeed's step waits for the host, which a graph cannot; use engine single or ddp"
    if config.optim.name == "lamb":
        return "optim.name=lamb has no fused step; use adamw, sgd or muon"
    if place.engine == "fsdp2" and config.optim.name == "sgd":
        return "torch has no fused SGD step over FSDP2's shards; use optim.name=adamw, or engine single or ddp"
    if config.precision.compute == "fp16":
        return "the host decides on fp16's loss scale after every update; use precision.compute=bf16"
    if config.performance.checkpointing:
        return "recomputation saves the random state in the middle of an update; set performance.checkpointing=false"
    if config.model.dropout:
        return "dropout in layers is seeded by the host at each update; set model.dropout=0 or use model.drop_path"
    return None


def _check_graph(config: RunConfig, place: Place) -> None:
    obstacle = _graph_obstacle(config, place)
    if obstacle:
        raise ConfigError(f"performance.cuda_graph=true is not possible here: {obstacle}")
    if place.device_type == "cpu":
        raise DeviceError("performance.cuda_graph=true needs an NVIDIA GPU; leave it out on the CPU")


def _attention(config: RunConfig, place: Place) -> tuple[str, str]:
    asked = config.performance.attention
    if place.device_type == "cpu":
        return "default", "a CPU has one kernel"
    if config.train.deterministic:
        return "default", "train.deterministic=true wants torch's choice"
    why = {"auto": "auto: the fastest for the shape, measured once and kept", "default": "torch's choice, as asked"}
    return asked, why.get(asked, "as asked")
