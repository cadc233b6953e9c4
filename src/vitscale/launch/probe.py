"""What a torch-free parent knows of this machine's devices: asked once from a short child, then cached.

The cache is keyed by everything that can change the answer, and by the boot, so that a GPU that was taken out or
repaired is noticed. Where no accelerator can be there at all, no child is started.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from vitscale.errors import DeviceError

PROBE_MODULE = "vitscale.measure.environment"
PROBE_TIMEOUT_S = 120
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# What the drivers of NVIDIA (Linux, WSL) and AMD make visible.
_ACCELERATOR_PATHS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The visible devices. bf16, float8: every GPU computes it natively; False also without a GPU."""

    cuda_devices: int
    cuda_names: tuple[str, ...]
    cuda_total_bytes: tuple[int, ...]
    bf16: bool
    mps: bool
    rocm: bool
    torch_cuda: str | None
    float8: bool = False


NO_DEVICES = DeviceFacts(0, (), (), bf16=False, mps=False, rocm=False, torch_cuda=None)


def device_facts(*, fresh: bool = False) -> DeviceFacts:
    """Return the facts, from the cache if nothing changed; raises DeviceError if torch cannot be asked.

    fresh: ask anew, since a GPU may have gone.
    """
    if sys.platform == "linux" and not any(Path(path).exists() for path in _ACCELERATOR_PATHS):
        return NO_DEVICES
    path = _cache_path()
    facts = None if fresh else _read(path)
    if facts is None:
        text = _ask()
        facts = _parse(text)
        assert facts is not None
        _write(path, text)
    return facts


def cached_device_facts() -> DeviceFacts | None:
    """Return the facts if they are known without starting a child; None: they are decided on the device."""
    if sys.platform == "linux" and not any(Path(path).exists() for path in _ACCELERATOR_PATHS):
        return NO_DEVICES
    return _read(_cache_path())


def _ask() -> str:
    command = [sys.executable, "-m", PROBE_MODULE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it left no message"])[-1]
        raise DeviceError(f"torch cannot be asked for this machine's devices: {last}") from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"torch did not answer within {PROBE_TIMEOUT_S} s when asked for this machine's devices; "
            "look at nvidia-smi, or use --device cpu"
        ) from error
    # Libraries may print before; the answer is the last line.
    lines = done.stdout.strip().splitlines()
    if not lines or _parse(lines[-1]) is None:
        raise DeviceError(f"torch's answer for this machine's devices is not readable: {done.stdout[-200:]!r}")
    return lines[-1]


def _parse(text: str) -> DeviceFacts | None:
    try:
        values: dict[str, Any] = json.loads(text)
        names, sizes = tuple(values.pop("cuda_names")), tuple(values.pop("cuda_total_bytes"))
        float8 = values.pop("float8")  # an answer without it was cached by an older vitscale
        return DeviceFacts(cuda_names=names, cuda_total_bytes=sizes, float8=float8, **values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _read(path: Path) -> DeviceFacts | None:
    try:
        return _parse(path.read_text())
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    """Keep the answer; a home folder that cannot be written only costs the next start a second."""
    partial = path.with_suffix(f".partial{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        return


def cache_folder() -> Path:
    """Where vitscale keeps what it has found out about this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitscale"


def _cache_path() -> Path:
    return cache_folder() / f"devices-{_key()}.json"


def _key() -> str:
    parts = [sys.prefix, _torch_build(), *(os.environ.get(name, "-") for name in _VARIABLES)]
    parts += [_text("/proc/driver/nvidia/version"), _text("/proc/sys/kernel/random/boot_id")]
    parts.append(",".join(sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _torch_build() -> str:
    """Version and place of torch, without importing it."""
    try:
        found = distribution("torch")
    except PackageNotFoundError:
        return "none"
    return f"{found.version} {found.locate_file('torch')}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return "-"
