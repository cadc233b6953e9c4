"""What `train` checks before any process starts, in the order in which a person would want to hear of it.

In: the command's arguments and the outer launcher, if there is one. Out: a Plan, or one error and nothing written.
Loads no torch: what must be known of the devices comes from launch.probe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError, DataError, DeviceError, ModelError
from vitscale.estimate.vit import check_resolution, shape_of
from vitscale.hardware import FLOAT8_MULTIPLE
from vitscale.launch.detect import OuterLaunch
from vitscale.launch.probe import NO_DEVICES, DeviceFacts, device_facts
from vitscale.observers.build import check_observers
from vitscale.results.run_folder import check_run_folder


@dataclass(frozen=True)
class Plan:
    """A training that can begin. device is "cpu" or "cuda"; notes are sentences to say once."""

    config: RunConfig
    decisions: Decisions
    out: Path
    device: str
    facts: DeviceFacts
    notes: tuple[str, ...]


def prepare(
    source: str,
    overrides: Sequence[str],
    nproc: int | None,
    out: Path | None,
    outer: OuterLaunch | None,
    *,
    fresh: bool,
    ds_config: Path | None,
    device: str | None,
) -> Plan:
    """Check everything that needs neither torch nor the data's content; raises VitscaleError."""
    config = load_config(source, overrides, ds_config)
    world_size = _world_size(nproc, outer)
    folder = _run_folder(source, out, outer)
    check_model_and_data(config)
    check_observers(config.log)
    kind, facts, notes = _device(device)
    decisions = decide(config, world_size=world_size, device_type=kind)
    _check_engine(config, decisions)
    if kind == "cuda":
        _check_enough_devices(facts, outer.local_world_size if outer else world_size)
        notes += _check_precision(config, facts)
    if outer is None or outer.rank == 0:
        check_run_folder(folder, fresh=fresh)
    return Plan(config, decisions, folder, kind, facts, notes)


def _world_size(nproc: int | None, outer: OuterLaunch | None) -> int:
    if outer is None:
        return nproc or 1
    if nproc is not None:
        raise ConfigError(
            f"--nproc {nproc} inside {outer.launcher}, which has started {outer.world_size} "
            f"process{'es' if outer.world_size > 1 else ''} already; leave --nproc out"
        )
    return outer.world_size


def _run_folder(source: str, out: Path | None, outer: OuterLaunch | None) -> Path:
    if out is not None:
        return out
    if outer is not None:
        raise ConfigError(f"--out is needed inside {outer.launcher}, so that all ranks mean the same folder")
    return Path("runs") / f"{Path(source).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_model_and_data(config: RunConfig) -> None:
    """Resolution against patch, and the kind of what data.root and model.pretrained name."""
    check_resolution(config.model)
    root, weights, source = config.data.root, config.model.pretrained, config.data.source
    if root is not None and source not in ("digits", "synthetic"):
        if not root.exists() and not config.data.download:
            raise DataError(f"data.root={root} does not exist; name the file or folder of the {source} data")
        if source == "npz" and not root.is_file():
            raise DataError(f"data.root={root} is not a file; data.source=npz needs one .npz file")
        if source == "folder" and not root.is_dir():
            raise DataError(f"data.root={root} is not a folder; data.source=folder needs one folder per class under it")
    if weights is not None and not weights.is_file():
        raise ModelError(f"model.pretrained={weights} is not a file; name a safetensors file of timm weights")


def check_devices(config: RunConfig, asked: str | None, processes: int) -> None:
    """Raise DeviceError unless the asked kind of device is here, often enough, and can do the precision."""
    kind, facts, _ = _device(asked)
    if kind == "cuda":
        _check_enough_devices(facts, processes)
        _check_precision(config, facts)


def _device(asked: str | None) -> tuple[str, DeviceFacts, tuple[str, ...]]:
    if asked not in (None, "cpu", "cuda"):
        extra = "; Apple's MPS is not supported, use cpu there" if asked == "mps" else ""
        raise DeviceError(f"--device {asked} is not one of cpu and cuda{extra}")
    if asked == "cpu":
        return "cpu", NO_DEVICES, ()
    facts = device_facts()
    if facts.rocm:
        raise DeviceError("this torch is a ROCm build, which vitscale does not support; use --device cpu")
    if facts.cuda_devices:
        return "cuda", facts, ()
    if asked == "cuda":
        raise DeviceError("--device cuda: torch sees no CUDA device here; use --device cpu, or see `vitscale env`")
    return "cpu", facts, ("Apple's MPS is not supported, so this trains on the CPU",) if facts.mps else ()


def _check_engine(config: RunConfig, decisions: Decisions) -> None:
    if decisions.engine != "deepspeed":
        return
    if find_spec("deepspeed") is None:
        raise ConfigError("parallel.engine=deepspeed needs a package: pip install deepspeed (Linux only)")
    from vitscale.engine.deepspeed.settings import deepspeed_settings

    deepspeed_settings(config, decisions)


def _check_enough_devices(facts: DeviceFacts, processes: int) -> None:
    if processes > facts.cuda_devices:
        plural = "s" if facts.cuda_devices > 1 else ""
        raise DeviceError(
            f"{processes} processes need {processes} GPUs, and this machine shows {facts.cuda_devices} GPU{plural}; "
            "lower the number of processes, or use --device cpu"
        )


def _check_precision(config: RunConfig, facts: DeviceFacts) -> tuple[str, ...]:
    """facts.bf16 means capability 8.0 or more, which is also where tf32 begins."""
    compute, name = config.precision.compute, facts.cuda_names[0]
    if compute == "float8":
        _check_float8(config, facts, name)
    if facts.bf16 or compute in ("fp32", "fp16"):
        return ()
    if compute == "tf32":
        raise DeviceError(f"precision.compute=tf32 is not possible on a {name}; use fp32 or fp16")
    return (f"a {name} only emulates bf16; precision.compute=fp16 is faster there",)


def _check_float8(config: RunConfig, facts: DeviceFacts, name: str) -> None:
    if not facts.float8:
        raise DeviceError(f"precision.compute=float8 is not possible on a {name}, only since Ada and Hopper; use bf16")
    if find_spec("torchao") is None:
        raise ConfigError("precision.compute=float8 needs a package: pip install vitscale[float8]")
    width = shape_of(config.model).embed_dim
    if width % FLOAT8_MULTIPLE:
        raise ConfigError(
            f"model.embed_dim={width} is not divisible by {FLOAT8_MULTIPLE}, which precision.compute=float8 needs"
        )
