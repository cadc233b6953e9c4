"""Which kernel computes attention: measured once for the shape at hand, cached, and set for the whole process.

In: performance.attention, the model's heads and tokens, the device. Out: a Choice, which `use` puts into torch's
switches for scaled_dot_product_attention. All kernels compute the same function; they differ in rounding. On the CPU
nothing is chosen. One process runs one engine, so a process-wide switch is the engine's.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from vitscale.launch.probe import cache_folder
from vitscale.results.files import write_json

KERNELS = ("flash", "cudnn", "efficient", "math")
_ENABLE: dict[str, Callable[[bool], None]] = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}
REPEATS = 10
Times = dict[str, float]


class Shape(NamedTuple):
    """What a block's attention works on: q, k and v are (batch, heads, tokens, head_dim) each."""

    batch: int
    heads: int
    tokens: int
    head_dim: int

    @property
    def text(self) -> str:
        """As a key of the cache."""
        return "x".join(map(str, self))


def attention_shape(model: nn.Module, micro_batch_size: int) -> Shape:
    """The shape of a timm Vision Transformer's blocks."""
    attention = model.blocks[0].attn  # type: ignore[union-attr, index]
    tokens = model.patch_embed.num_patches + model.num_prefix_tokens  # type: ignore[union-attr, operator]
    return Shape(micro_batch_size, int(attention.num_heads), int(tokens), int(attention.head_dim))


class Choice(NamedTuple):
    """A kernel and the sentence that says why."""

    kernel: str
    why: str


def choose(asked: str, shape: Shape, device: torch.device, dtype: torch.dtype) -> Choice | None:
    """The kernel that was asked for, or the fastest (auto); None leaves the choice to torch."""
    if device.type != "cuda" or asked == "default":
        return None
    if asked != "auto":
        return Choice(asked, f"attention: {asked}, as asked")
    times = cached(_key(shape, device, dtype), lambda: measure(shape, device, dtype))
    if not times:
        return None
    best = min(times, key=lambda name: times[name])
    told = ", ".join(f"{name} {1e3 * seconds:.3f} ms" for name, seconds in sorted(times.items(), key=lambda i: i[1]))
    return Choice(best, f"attention: {best}, the fastest for this shape ({told}, forward and backward)")


def use(name: str) -> None:
    """Let only this kernel be taken, and torch's plain one where it cannot run (evaluation of another shape)."""
    for kernel, enable in _ENABLE.items():
        enable(kernel in (name, "math"))


def measure(shape: Shape, device: torch.device, dtype: torch.dtype) -> Times:
    """Seconds of forward and backward by kernel; one that refuses the shape is left out."""
    times: Times = {}
    for name in KERNELS:
        for kernel, enable in _ENABLE.items():
            enable(kernel == name)
        with suppress(RuntimeError):
            times[name] = _seconds(shape, device, dtype)
    for enable in _ENABLE.values():
        enable(True)
    return times


def _seconds(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    batch, heads, tokens, head_dim = shape
    qkv = torch.randn(batch, tokens, 3, heads, head_dim, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(batch, heads, tokens, head_dim, device=device, dtype=dtype)
    values = []
    for index in range(REPEATS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # as timm makes them: views, heads not contiguous
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), qkv, weight)
        end.record()
        end.synchronize()
        if index >= 3:
            values.append(begin.elapsed_time(end) / 1e3)
    return float(statistics.median(values))


def cached(key: str, make: Callable[[], Times]) -> Times:
    """What is known of this key on this machine, or made now and kept. A cache that cannot be kept is no error."""
    path = cache_folder() / "attention.json"
    known: dict[str, Times] = {}
    with suppress(OSError, ValueError):
        known = json.loads(path.read_text())
    if key not in known:
        known[key] = make()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, known)
    return known[key]


def _key(shape: Shape, device: torch.device, dtype: torch.dtype) -> str:
    versions = f"{torch.__version__} {torch.version.cuda} {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
    return f"{torch.cuda.get_device_name(device)}, torch {versions}, {shape.text}, {dtype}"
