"""`vitscale train CONFIG`: check all that can be checked, then train in this process or in a group of ranks."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vitscale.cli.preflight import Plan
    from vitscale.errors import VitscaleError
    from vitscale.launch.detect import OuterLaunch


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe's name, or the path of a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as optim.lr=3e-4.")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", min=1, help="Processes to start, one per device. Default: 1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run folder. Default: runs/<recipe>-<time>.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; refuse a folder that is not empty.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print memory, updates and time, then end without training.")
    ] = False,
    ds_config: Annotated[
        Path | None, typer.Option("--ds-config", metavar="FILE", help="JSON file of DeepSpeed's own keys.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="Default: CUDA where there is a GPU, else cpu.")
    ] = None,
    restarts: Annotated[
        int,
        typer.Option("--restarts", min=0, help="How often to go on from the last checkpoint when a rank died or hung."),
    ] = 0,
    hang_limit: Annotated[
        float,
        typer.Option(
            "--hang-limit",
            min=1.0,
            metavar="SECONDS",
            help="A rank hangs that made no update for so long, and for ten times its median update.",
        ),
    ] = 30.0,
) -> int:
    """Train a Vision Transformer; the same command with the same --out resumes.

    Everything that can be checked is checked before a process is started.
    SIGTERM and a closed terminal end the run with a checkpoint and exit code 75,
    Ctrl-C at once with 130. Inside torchrun, deepspeed, mpirun or srun the ranks
    are joined: leave --nproc out and give --out.

    A rank that dies or hangs ends the run, with its name; --restarts goes on by
    itself from the last checkpoint.

    Examples:

      vitscale train digits
      vitscale train digits --nproc 2 parallel.engine=fsdp2 --out runs/a
      vitscale train cifar10-vit-b16 data.root=/data/cifar optim.lr=3e-4 --dry-run
      vitscale train digits -n 2 parallel.engine=deepspeed parallel.zero_stage=2
      vitscale train cifar10-vit-b16 data.root=/data/cifar -n 8 --restarts 3 -o runs/c
      torchrun --nproc-per-node 8 --no-python vitscale train digits -o runs/b
    """
    from vitscale.cli.preflight import prepare
    from vitscale.errors import ConfigError, DeviceError, VitscaleError
    from vitscale.launch.detect import detect

    outer = detect(os.environ)
    if outer is not None and restarts:
        raise ConfigError(
            f"--restarts inside {outer.launcher}, which starts the ranks: let it start them again (torchrun "
            "--max-restarts, Slurm's requeue), and leave --restarts out; the run goes on from its last checkpoint"
        )
    try:
        plan = prepare(config, overrides or [], nproc, out, outer, fresh=fresh, ds_config=ds_config, device=device)
    except VitscaleError as error:
        # All ranks find the same; only what may differ between hosts is said by each.
        if outer is None or outer.rank == 0 or isinstance(error, DeviceError):
            raise
        return error.exit_code
    if dry_run:
        return _dry_run(plan) if outer is None or outer.rank == 0 else 0
    if outer is None or outer.rank == 0:
        for note in plan.notes:
            typer.echo(f"note: {note}")
    with tempfile.TemporaryDirectory(prefix="vitscale-") as folder:
        try:
            code = _train(plan, Path(folder), outer, fresh=fresh, restarts=restarts, hang_s=hang_limit)
        except KeyboardInterrupt:
            raise _interrupted(plan.out) from None
    if code == 0 and (outer is None or outer.rank == 0):
        _print_result(plan.out)
    return code


def _train(plan: Plan, folder: Path, outer: OuterLaunch | None, *, fresh: bool, restarts: int, hang_s: float) -> int:
    from vitscale.cli.train_group import train_in_group
    from vitscale.config.load import dump_config

    signal.signal(signal.SIGTERM, _stop)  # until the group or the trainer takes over, and after it
    if outer is None and (plan.decisions.world_size > 1 or restarts):
        return train_in_group(plan, folder, fresh=fresh, restarts=restarts, hang_s=hang_s)
    config_file = folder / "config.yaml"
    config_file.write_text(dump_config(plan.config))
    return _train_here(plan, config_file, outer, fresh=fresh, hang_s=hang_s)


def _interrupted(out: Path) -> VitscaleError:
    """Ctrl-C, and from where the run can go on."""
    from vitscale.errors import Interrupted

    last = max((file.parent.name for file in (out / "checkpoints").glob("update-*/manifest.json")), default=None)
    if last is None:
        return Interrupted("interrupted; no checkpoint was written yet, so the run begins anew")
    return Interrupted(
        f"interrupted; the last checkpoint is of update {int(last.removeprefix('update-'))}: run the same command "
        f"again with --out {out} to go on from it"
    )


def _train_here(plan: Plan, config_file: Path, outer: OuterLaunch | None, *, fresh: bool, hang_s: float) -> int:
    from vitscale.launch.child import watch_launcher
    from vitscale.launch.detect import adopt
    from vitscale.launch.failure import as_named

    if outer is not None:
        adopt(outer, os.environ)
        watch_launcher()
    from vitscale.phases import NULL
    from vitscale.run import train_from_file
    from vitscale.study.rank import watched_host

    watching = nullcontext(NULL) if outer is None else watched_host(outer, hang_s)
    try:
        with watching as recorder:
            return train_from_file(config_file, plan.out, fresh=fresh, device=plan.device, recorder=recorder)
    except Exception as error:
        named = as_named(error)
        if named is None or named is error:
            raise
        raise named from error


def _stop(*_: object) -> None:
    from vitscale.errors import Stopped

    raise Stopped("stopped by SIGTERM while no update was running; run the same command again to go on")


def _dry_run(plan: Plan) -> int:
    from vitscale.cli.dry_run import rows

    _print_table(rows(plan))
    return 0


def _print_result(out: Path) -> None:
    import json

    from vitscale.observers.progress import duration

    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    rows = [("updates", f"{result['updates']:,}"), ("images seen", f"{result['images_seen']:,}")]
    for key, name in (("top1", "val top-1"), ("best_top1", "best val top-1"), ("top5", "val top-5")):
        if result[key] is not None:
            rows.append((name, f"{100 * result[key]:.2f} %"))
    rows.append(("training time", duration(result["train_seconds"])))
    rows.append(("run folder", str(out)))
    _print_table(rows)


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    Console(highlight=False).print(table)
