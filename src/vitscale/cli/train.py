"""`vitscale train CONFIG`: check all that can be checked, then train in this process or in a group of ranks."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vitscale.cli.preflight import Plan
    from vitscale.errors import VitscaleError
    from vitscale.launch.detect import OuterLaunch
    from vitscale.launch.outcome import GroupOutcome


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
) -> int:
    """Train a Vision Transformer; the same command with the same --out resumes.

    Everything that can be checked is checked before a process is started.
    SIGTERM and a closed terminal end the run with a checkpoint and exit code 75,
    Ctrl-C at once with 130. Inside torchrun, deepspeed, mpirun or srun the ranks
    are joined: leave --nproc out and give --out.

    Examples:

      vitscale train digits
      vitscale train digits --nproc 2 parallel.engine=fsdp2 --out runs/a
      vitscale train cifar10-vit-b16 data.root=/data/cifar optim.lr=3e-4 --dry-run
      vitscale train digits -n 2 parallel.engine=deepspeed parallel.zero_stage=2
      torchrun --nproc-per-node 8 --no-python vitscale train digits -o runs/b
    """
    from vitscale.cli.preflight import prepare
    from vitscale.errors import DeviceError, VitscaleError
    from vitscale.launch.detect import detect

    outer = detect(os.environ)
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
            code = _train(plan, Path(folder), outer, fresh=fresh)
        except KeyboardInterrupt:
            raise _interrupted(plan.out) from None
    if code == 0 and (outer is None or outer.rank == 0):
        _print_result(plan.out)
    return code


def _train(plan: Plan, folder: Path, outer: OuterLaunch | None, *, fresh: bool) -> int:
    from vitscale.config.load import dump_config

    config_file = folder / "config.yaml"
    config_file.write_text(dump_config(plan.config))
    if outer is not None or plan.decisions.world_size == 1:
        return _train_here(plan, config_file, outer, fresh=fresh)
    return _train_in_group(plan, config_file, folder / "ranks", fresh=fresh)


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


def _train_here(plan: Plan, config_file: Path, outer: OuterLaunch | None, *, fresh: bool) -> int:
    from vitscale.launch.child import watch_launcher
    from vitscale.launch.detect import adopt
    from vitscale.launch.failure import as_named

    if outer is not None:
        adopt(outer, os.environ)
        watch_launcher()
    signal.signal(signal.SIGTERM, _stop)  # until the trainer takes over, and after it
    from vitscale.run import train_from_file

    try:
        return train_from_file(config_file, plan.out, fresh=fresh, device=plan.device)
    except Exception as error:
        named = as_named(error)
        if named is None or named is error:
            raise
        raise named from error


def _stop(*_: object) -> None:
    from vitscale.errors import Stopped

    raise Stopped("stopped by SIGTERM while no update was running; run the same command again to go on")


def _train_in_group(plan: Plan, config_file: Path, log_dir: Path, *, fresh: bool) -> int:
    from vitscale.launch.local import start_group

    args = ["--config", str(config_file), "--out", str(plan.out), "--device", plan.device]
    args += ["--fresh"] if fresh else []
    nproc = plan.decisions.world_size
    with start_group("vitscale.run", args, nproc, log_dir=log_dir, show_output_of_rank0=True) as group:
        group.wait()
        outcome = group.outcome()
    if outcome.sentence is None:
        return outcome.exit_code
    _show_tail(outcome)
    raise _error_of(outcome)


def _show_tail(outcome: GroupOutcome) -> None:
    """Show the last lines of a rank other than 0, whose stderr nobody has seen."""
    from vitscale.errors import EXIT_RUN_FAILED

    if outcome.exit_code == EXIT_RUN_FAILED and outcome.rank and outcome.stderr_tail:
        print(f"rank {outcome.rank}'s last lines:\n{outcome.stderr_tail}", file=sys.stderr)


def _error_of(outcome: GroupOutcome) -> BaseException:
    from vitscale.errors import EXIT_INTERRUPTED, VitscaleError

    if outcome.exit_code == EXIT_INTERRUPTED:
        return KeyboardInterrupt()
    error = VitscaleError(outcome.sentence)
    error.exit_code = outcome.exit_code
    return error


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
