"""`vitscale show CONFIG`: the resolved config, what was decided and why, and DeepSpeed's JSON. Loads no torch."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vitscale.config.decide import Decisions
    from vitscale.config.performance import Reason
    from vitscale.config.run import RunConfig


def show(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe's name, or the path of a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as optim.lr=3e-4.")
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="Number of processes to decide for.")] = 1,
    ds_config: Annotated[
        Path | None, typer.Option("--ds-config", metavar="FILE", help="JSON file of DeepSpeed's own keys.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs, not YAML for people.")] = False,
) -> None:
    """Show the resolved config, what is on by default and why, and DeepSpeed's JSON.

    What is printed is a complete config: what was decided stands in comments,
    so `vitscale show digits > my.yaml` makes a file to edit and to train from.

    Examples:

      vitscale show digits
      vitscale show digits --nproc 4 parallel.engine=deepspeed
      vitscale show digits --ds-config ds.json parallel.engine=deepspeed
      vitscale show digits --json | jq .decisions
    """
    from vitscale.config.decide import decide
    from vitscale.config.load import load_config
    from vitscale.estimate.vit import check_resolution

    resolved = load_config(config, overrides or (), ds_config)
    decisions = decide(resolved, world_size=nproc, device_type=None)
    check_resolution(resolved.model)
    settings = _deepspeed_settings(resolved, decisions)
    if json:
        typer.echo(json_module.dumps(_as_json(resolved, decisions, settings), indent=2))
    else:
        _print(_as_yaml(resolved, decisions, settings))


def _deepspeed_settings(config: RunConfig, decisions: Decisions) -> dict[str, Any] | None:
    if decisions.engine != "deepspeed":
        return None
    from vitscale.engine.deepspeed.settings import deepspeed_settings

    return deepspeed_settings(config, decisions)


def _reasons(config: RunConfig, decisions: Decisions) -> tuple[Reason, ...]:
    """What was decided, and which of DeepSpeed's own defaults were changed."""
    if decisions.engine != "deepspeed":
        return decisions.reasons
    from vitscale.engine.deepspeed.settings import deepspeed_reasons

    return (*decisions.reasons, *deepspeed_reasons(config, decisions))


def _as_json(config: RunConfig, decisions: Decisions, settings: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "nproc": decisions.world_size,
        "decisions": [reason._asdict() for reason in _reasons(config, decisions)],
        "sizes": dict(_sizes(config)),
        "deepspeed_json": settings,
    }


def _as_yaml(config: RunConfig, decisions: Decisions, settings: dict[str, Any] | None) -> str:
    from vitscale.config.load import dump_config

    processes = f"{decisions.world_size} process" + ("es" if decisions.world_size > 1 else "")
    comments = [f"decided for {processes}:"]
    comments += [f"  {reason.key} = {reason.value}  ({reason.why})" for reason in _reasons(config, decisions)]
    sizes = ((name, "n/a" if value is None else f"{value:,}") for name, value in _sizes(config))
    comments += ["the model:", *(f"  {name} = {value}" for name, value in sizes)]
    comments += [_devices(), "data: not opened here; classes and images are checked by train"]
    if settings is not None:
        comments += ["the JSON that DeepSpeed gets:", *json_module.dumps(settings, indent=2).splitlines()]
    return dump_config(config) + "".join(f"# {line}".rstrip() + "\n" for line in comments)


def _sizes(config: RunConfig) -> list[tuple[str, int | None]]:
    from vitscale.estimate.vit import expected_classes, forward_flops, num_parameters, shape_of

    classes = expected_classes(config.model, config.data)
    shape = shape_of(config.model, classes)
    name = "parameters" if classes else "parameters_without_head"
    return [
        ("patches", shape.num_patches),
        (name, num_parameters(shape)),
        ("forward_flops_per_image", forward_flops(shape)),
    ]


def _devices() -> str:
    from vitscale.launch.probe import cached_device_facts

    facts = cached_device_facts()
    if facts is None:
        return "devices: not looked at yet; whether they can do this is decided on the device"
    return f"devices here: {facts.cuda_devices or 'no'} CUDA GPU{'s' if facts.cuda_devices != 1 else ''}"


def _print(text: str) -> None:
    """YAML in colour on a terminal; plain, and never wrapped, where it goes to a file or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        typer.echo(text, nl=False)
        return
    from rich.syntax import Syntax

    console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
