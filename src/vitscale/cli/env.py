"""`vitscale env`: what this machine has, as far as a number may depend on it; with --probe, how fast it is."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def env(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="With --probe: the run that is looked at.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as train.micro_batch_size=64.")
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Measure devices, network, model and loader.")] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", min=1, help="With --probe: processes, one per device. Default: 1.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="With --probe. Default: CUDA if there is.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> int:
    """Show versions, devices and what each device can do; with --probe, measure it.

    Put its output into a bug report. Peaks are the maker's figures for dense
    products; a device that is not in vitscale's table has none, so no model
    FLOPs utilisation is reported for it.

    --probe measures each device, the network between the processes (under 30 s)
    and the step of a model: of CONFIG, else synthetic-vit-b16 on a GPU and digits
    on a CPU. With a CONFIG its loader is measured too. Then it says what will limit
    that run, and the batch and accumulation at which communication falls under 5 %.
    To probe a network, start it with torchrun, mpirun or srun on all hosts.

    Examples:

      vitscale env
      vitscale env --json > env.json
      vitscale env --probe --nproc 2
      vitscale env cifar10-vit-b16 train.micro_batch_size=16 --probe --nproc 4
      torchrun --nnodes 2 --nproc-per-node 1 --no-python vitscale env --probe
    """
    if probe:
        from vitscale.cli.probe import run_probe

        return run_probe(config, overrides or [], nproc, device, json=json)
    _refuse(config, nproc, device)
    from vitscale.measure.environment import describe

    facts = describe()
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
        return 0
    from rich.console import Console

    Console().print(_table(facts))
    return 0


def _refuse(config: str | None, nproc: int | None, device: str | None) -> None:
    """What would be ignored is an error."""
    from vitscale.errors import ConfigError

    for name, value in (("CONFIG", config), ("--nproc", nproc), ("--device", device)):
        if value is not None:
            raise ConfigError(f"{name} ({value}) has a meaning with --probe only; add --probe, or leave it out")


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
    yield from _links(facts)
    yield "probe", _last_probe()


def _links(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    links = facts["links"]
    if links is not None:
        for pair, kind in links["pairs"].items():
            yield f"GPUs {pair}", kind or "link unknown"
    for network in facts["networks"]:
        speed = network["bits_per_s"]
        yield f"network {network['name']}", "speed unknown" if speed is None else f"{speed / 1e9:g} Gbit/s"


def _last_probe() -> str:
    """When this machine was last measured."""
    from vitscale.launch.probe import profile_path

    try:
        made = json_module.loads(profile_path().read_text())
        return f"{made['made_at']}, {len(made['ranks'])} process(es), {made['config']}: {profile_path()}"
    except (OSError, ValueError, KeyError, TypeError):
        return "never: `vitscale env --probe` measures this machine"


def _device(device: dict[str, Any]) -> str:
    from vitscale.hardware import find_device

    text = f"{device['name']}, {device['total_bytes'] / 2**30:.0f} GiB, bf16 {device['bf16']}"
    known = find_device(device["name"])
    if known is None:
        return f"{text}, peak FLOP/s unknown"
    kinds = ("fp32", "tf32", "bf16", "fp16", "float8")
    peaks = [f"{kind} {peak / 1e12:g}" for kind in kinds if (peak := known.peak_flops(kind)) is not None]
    return f"{text}, peak TFLOP/s: {', '.join(peaks)} ({known.source})"
