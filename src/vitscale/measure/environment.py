"""What a run ran on: versions, devices, CPU, source state. Stored beside every result, and the basis of comparisons.

`describe()` returns all of it. `python -m vitscale.measure.environment` prints only what a torch-free parent must
know of the devices (`device_facts`), as JSON: launch.probe starts that as a child and caches it. Nothing is guessed:
what cannot be found is None.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from vitscale.hardware import FLOAT8_CAPABILITY
from vitscale.measure.links import gpu_links, networks

PACKAGES = ("vitscale", "torch", "torchvision", "timm", "deepspeed", "torchao", "numpy", "pillow", "nvidia-ml-py")
# Variables that change speed or results. None of them carries a secret.
_PREFIXES = ("OMP_", "MKL_", "NCCL_", "GLOO_", "CUDA_", "CUBLAS_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "DS_")
_BF16_CAPABILITY = (8, 0)  # earlier NVIDIA GPUs emulate bf16


def describe() -> dict[str, Any]:
    """Everything about this process's surroundings that a number may depend on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "torch_build": {
            "cuda": torch.version.cuda,
            "rocm": torch.version.hip,
            "cudnn": _cudnn_version(),
            "nccl": _nccl_version(),
        },
        "driver": _driver(),
        "devices": cuda_devices(),
        "links": gpu_links(),
        "networks": networks(),
        "cpu": _cpu(),
        "torch_threads": {"intra_op": torch.get_num_threads(), "inter_op": torch.get_num_interop_threads()},
        "git": _git(Path(__file__).parent),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)},
    }


def device_facts() -> dict[str, Any]:
    """What the parent of a group must know before it starts ranks."""
    devices = cuda_devices()
    rocm = torch.version.hip is not None
    return {
        "cuda_devices": 0 if rocm else len(devices),
        "cuda_names": [device["name"] for device in devices],
        "cuda_total_bytes": [device["total_bytes"] for device in devices],
        "bf16": bool(devices) and all(device["bf16"] == "native" for device in devices),
        "float8": bool(devices) and all(tuple(device["capability"]) >= FLOAT8_CAPABILITY for device in devices),
        "mps": bool(torch.backends.mps.is_available()),
        "rocm": rocm,
        "torch_cuda": torch.version.cuda,
    }


def cuda_devices() -> list[dict[str, Any]]:
    """The visible GPUs in torch's order."""
    if not torch.cuda.is_available():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        devices.append(
            {
                "name": properties.name,
                "total_bytes": properties.total_memory,
                "capability": list(capability),
                "multiprocessors": properties.multi_processor_count,
                "bf16": "native" if capability >= _BF16_CAPABILITY else "emulated",
            }
        )
    return devices


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nccl_version() -> list[int] | None:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    return list(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def _cudnn_version() -> int | None:
    if not torch.cuda.is_available():
        return None
    number: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return number


def _driver() -> str | None:
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[0].isdigit() and "." in word), None)


def _cpu() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"model": _cpu_model(), "cores": os.cpu_count(), "usable_cores": usable, "memory_bytes": _host_memory()}


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Commit and cleanliness of the source tree that this package runs from; None for an installed copy."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        # Fails for a copy in a virtual environment that lies inside somebody else's repository.
        _run_git(folder, "ls-files", "--error-unmatch", "../errors.py")
        changes = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _run_git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


if __name__ == "__main__":
    print(json.dumps(device_facts()))
