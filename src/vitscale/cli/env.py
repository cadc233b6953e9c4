"""`vitscale env`: what this machine has, as far as a number may depend on it."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def env(json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False) -> None:
    """Show versions, devices and what each device can do.

    Put its output into a bug report. Peaks are the maker's figures for dense
    products; a device that is not in vitscale's table has none, so no model
    FLOPs utilisation is reported for it.

    Examples:

      vitscale env
      vitscale env --json > env.json
    """
    from vitscale.measure.environment import describe

    facts = describe()
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
        return
    from rich.console import Console

    Console().print(_table(facts))


def _table(facts: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table(show_header=False)
    for name, value in _rows(facts):
        table.add_row(name, value)
    return table


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "python", facts["python"]
    yield "platform", facts["platform"]
    for package, version in facts["packages"].items():
        yield package, version or "not installed"
    build = facts["torch_build"]
    yield "CUDA of torch", build["cuda"] or "none"
    yield "NVIDIA driver", facts["driver"] or "none"
    cpu = facts["cpu"]
    memory = "unknown" if cpu["memory_bytes"] is None else f"{cpu['memory_bytes'] / 2**30:.0f} GiB"
    yield "CPU", f"{cpu['model'] or 'unknown'}, {cpu['usable_cores']} of {cpu['cores']} cores, {memory}"
    for index, device in enumerate(facts["devices"]):
        yield f"GPU {index}", _device(device)
    if not facts["devices"]:
        yield "GPU", "none: vitscale trains on the CPU here"


def _device(device: dict[str, Any]) -> str:
    from vitscale.hardware import find_device

    text = f"{device['name']}, {device['total_bytes'] / 2**30:.0f} GiB, bf16 {device['bf16']}"
    known = find_device(device["name"])
    if known is None:
        return f"{text}, peak FLOP/s unknown"
    kinds = ("fp32", "tf32", "bf16", "fp16", "float8")
    peaks = [f"{kind} {peak / 1e12:g}" for kind in kinds if (peak := known.peak_flops(kind)) is not None]
    return f"{text}, peak TFLOP/s: {', '.join(peaks)} ({known.source})"
