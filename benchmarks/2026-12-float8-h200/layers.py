"""Forward and backward of a ViT's block, compiled, in bf16 and in float8, and what its single products cost.

    python layers.py OUT [--models B L H] [--limit-s 240]     appends to OUT/layers.jsonl, prints as it goes

Needs a GPU with float8 and torchao. Variants of a block: bf16; float8 as vitscale uses it (one scale per tensor); the
same without attn.proj, the smallest product; one scale per row. Each is a fresh block, compiled, timed by device events
over 30 calls after 10 of warm-up, in three rounds of alternating order; the figure is the median of all calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

# width, heads, images, tokens: as in the goals of the project's speed table
MODELS = {"B": (768, 12, 256, 197), "L": (1024, 16, 128, 197), "H": (1280, 16, 64, 257)}
VARIANTS = {
    "B": ("bf16", "float8"),
    "L": ("bf16", "float8", "float8 but attn.proj", "float8 by rows"),
    "H": ("bf16", "float8", "float8 but attn.proj"),
}
DTYPE, CUDA = torch.bfloat16, torch.device("cuda", 0)


def block(width: int, heads: int, variant: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made = Block(width, heads, qkv_bias=True).to(CUDA, DTYPE)
    if variant != "bf16":
        config = Float8LinearConfig(pad_inner_dim=True)
        if variant == "float8 by rows":
            config = Float8LinearConfig.from_recipe_name("rowwise")
        left = "attn.proj" if variant == "float8 but attn.proj" else ""
        convert_to_float8_training(made, module_filter_fn=lambda _, name: name != left, config=config)
    made.compile(dynamic=False)
    return made


def milliseconds(work: Callable[[], Any], calls: int = 30, warmup: int = 3) -> list[float]:
    values = []
    for index in range(calls + warmup):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        if index >= warmup:
            values.append(begin.elapsed_time(end))
    return values


def step_of(model: torch.nn.Module, images: torch.Tensor, gradient: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(images).backward(gradient)

    return step


def blocks(name: str, left: Callable[[], float], keep: Callable[[dict[str, Any]], None]) -> None:
    width, heads, count, tokens = MODELS[name]
    images = torch.randn(count, tokens, width, device=CUDA, dtype=DTYPE, requires_grad=True)
    gradient = 1e-3 * torch.randn_like(images)
    steps: dict[str, Callable[[], None]] = {}
    for variant in VARIANTS[name]:
        if left() < 40:
            print(f"ViT-{name}: no time left for {variant}", flush=True)
            continue
        began = time.monotonic()
        steps[variant] = step_of(block(width, heads, variant), images, gradient)
        milliseconds(steps[variant], calls=1, warmup=10)
        print(f"ViT-{name} block, {variant}: compiled in {time.monotonic() - began:.0f} s", flush=True)
    found: dict[str, list[float]] = {variant: [] for variant in steps}
    for number in range(3):
        for variant in list(steps)[:: 1 if number % 2 == 0 else -1]:
            found[variant] += milliseconds(steps[variant], calls=10)
    for variant, values in found.items():
        median = statistics.median(values)
        ratio = statistics.median(found["bf16"]) / median
        keep({"what": "block", "model": name, "variant": variant, "ms": values, "median_ms": median, "speedup": ratio})
        print(f"ViT-{name} block, {variant}: {median:.3f} ms, {ratio:.3f} of bf16's speed", flush=True)
    torch._dynamo.reset()


def products(name: str, keep: Callable[[dict[str, Any]], None]) -> None:
    """The three products of each layer alone, and the two passes over a tensor that one cast takes at least."""
    width, _, count, tokens = MODELS[name]
    rows = count * tokens
    for layer, (inner, outer) in {
        "qkv": (width, 3 * width),
        "proj": (width, width),
        "fc1": (width, 4 * width),
        "fc2": (4 * width, width),
    }.items():
        for kind, (m, k, n) in {
            "output": (rows, inner, outer),
            "input's gradient": (rows, outer, inner),
            "weight's gradient": (outer, rows, inner),
        }.items():
            a, b = torch.randn(m, k, device=CUDA, dtype=DTYPE), torch.randn(n, k, device=CUDA, dtype=DTYPE)
            first = torch.float8_e4m3fn if kind == "output" else torch.float8_e5m2
            low_a, low_b = a.to(first), b.to(torch.float8_e4m3fn)
            one = torch.ones((), device=CUDA)
            options = {"scale_a": one, "scale_b": one, "out_dtype": DTYPE, "use_fast_accum": kind == "output"}
            bf16 = statistics.median(milliseconds(lambda a=a, b=b: a @ b.t()))
            low = statistics.median(
                milliseconds(lambda a=low_a, b=low_b, options=options: torch._scaled_mm(a, b.t(), **options))
            )
            rates = [2 * m * k * n / ms / 1e9 for ms in (bf16, low)]
            keep({"what": "product", "model": name, "layer": layer, "kind": kind, "mkn": [m, k, n], "ms": [bf16, low]})
            print(
                f"ViT-{name} {layer}, {kind}: bf16 {bf16:.3f} ms ({rates[0]:.0f} TFLOP/s), "
                f"float8 {low:.3f} ms ({rates[1]:.0f} TFLOP/s)",
                flush=True,
            )
    x = torch.randn(rows, 4 * width, device=CUDA, dtype=DTYPE)
    read = statistics.median(milliseconds(lambda: x.abs().max()))
    write = statistics.median(milliseconds(lambda: x.to(torch.float8_e4m3fn)))
    keep({"what": "cast", "model": name, "elements": x.numel(), "eager_amax_ms": read, "eager_cast_ms": write})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["L", "H", "B"], choices=list(MODELS))
    parser.add_argument("--limit-s", type=float, default=240)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def keep(row: dict[str, Any]) -> None:
        with (asked.out / "layers.jsonl").open("a") as file:
            file.write(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, **row}) + "\n")

    products("L", keep)
    for name in asked.models:
        blocks(name, lambda: asked.limit_s - (time.monotonic() - began), keep)


if __name__ == "__main__":
    sys.exit(main())
