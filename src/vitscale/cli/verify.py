"""`vitscale verify`: the proof of equality as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vitscale.verify.proof import Proof


def verify(
    config: Annotated[
        str, typer.Argument(help="Recipe or YAML file whose model, data and precision are used.")
    ] = "verify",
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides.")] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Processes of every engine.")] = 2,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Only this engine (ddp, fsdp2, deepspeed:0 .. deepspeed:3); may be repeated."),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option("--variant", help="Only this variant, as the table names it; may be repeated.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; default: CUDA where there is one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep what the ranks gathered, and proof.json, here.")
    ] = None,
) -> int:
    """Prove that every engine makes the same update as one process.

    Runs 20 updates of each variant (accumulation 1, 2, 4, a short last window, clipping, mixup with drop path,
    AdamW, fp64, activation checkpointing) with every engine, and compares gradients, losses and weights with one
    process. Beside each figure stands the noise floor: one process with accumulation 2 against 1. Exit code 1 if a
    figure is out of its bounds.

    [bold]Examples[/bold]

        vitscale verify                                   a tiny ViT, all engines, 2 processes
        vitscale verify --nproc 4 --engine deepspeed:3    one engine
        vitscale verify precision.compute=bf16            below fp32: judged against the noise floor
        vitscale verify performance.compile=true          with torch.compile as well
    """
    from rich.console import Console

    from vitscale.cli.preflight import check_devices, check_model_and_data
    from vitscale.config.load import load_config
    from vitscale.errors import EXIT_CHECK_FAILED, EXIT_OK
    from vitscale.results.run_folder import check_folder
    from vitscale.verify.proof import verify_engines
    from vitscale.verify.variants import ENGINES

    if "=" in config:
        config, overrides = "verify", [config, *(overrides or [])]
    loaded = load_config(config, overrides or [])
    check_model_and_data(loaded)
    check_devices(loaded, device, nproc)
    if out is not None:
        check_folder(out)
    console = Console()
    with console.status("starting") as status:
        proof = verify_engines(
            loaded,
            nproc,
            engines=engine or ENGINES,
            only=variant or (),
            device=device,
            folder=out,
            on_progress=lambda index, job, outcome: status.update(
                f"{job.name}: running {len(job.payload['runs'])} variants on {job.nproc} process(es)"
                if outcome is None
                else f"{job.name}: {outcome.kind} after {outcome.seconds:.0f} s"
            ),
        )
    _print(proof, console)
    if out is not None:
        _save(proof, out)
    return EXIT_OK if proof.passed else EXIT_CHECK_FAILED


def _print(proof: Proof, console: Console) -> None:
    console.print(_table(proof))
    for figure in proof.figures:
        if figure.failed:
            bound = f"bound {figure.bound:.0e}" if figure.bound is not None else "ten times its floor"
            console.print(
                f"[red]FAILED[/] {figure.job} {figure.variant}: {figure.quantity} differ by {figure.value:.1e} "
                f"at {figure.worst} ({bound}, floor {figure.floor:.1e})",
                soft_wrap=True,
            )
    for name, reason, failed in proof.missing:
        colour, what = ("red", "FAILED") if failed else ("yellow", "skipped")
        console.print(f"[{colour}]{name}: {what}: {reason}[/]", soft_wrap=True)
    failures = sum(f.failed for f in proof.figures) + sum(m[2] for m in proof.missing)
    marked = sum(f.marked for f in proof.figures)
    text = f"{len(proof.figures)} figures, {failures} failed, {marked} marked * (over ten times the floor)"
    console.print(
        f"{'[green]PASSED[/]' if proof.passed else '[red]FAILED[/]'}: {text}, {proof.seconds:.0f} s", soft_wrap=True
    )


def _table(proof: Proof) -> Table:
    """A line per variant under its engine; in each cell the difference and, behind it, the noise floor."""
    from rich.table import Table

    table = Table(title="Relative difference from one process (noise floor)", box=None, padding=(0, 1), pad_edge=False)
    for name in ("engine and variant", "weights", "losses", "gradients"):
        table.add_column(name, no_wrap=True)
    jobs: dict[str, dict[str, dict[str, str]]] = {}
    for f in proof.figures:
        cell = f"{f.value:.1e} ({f.floor:.0e}){'*' if f.marked else ''}"
        row = jobs.setdefault(f.job, {}).setdefault(f.variant, {})
        row[f.quantity] = f"[red]{cell}[/]" if f.failed else cell
    for job, rows in jobs.items():
        table.add_row(f"[bold]{job}[/]")
        for variant, cells in rows.items():
            table.add_row(f"  {variant}", *(cells.get(q, "") for q in ("weights", "losses", "gradients")))
    return table


def _save(proof: Proof, out: Path) -> None:
    from dataclasses import asdict

    from vitscale.results.files import write_json

    figures = [{**asdict(f), "failed": f.failed, "marked": f.marked} for f in proof.figures]
    write_json(out / "proof.json", {"passed": proof.passed, "figures": figures, "missing": proof.missing})
