"""`vitscale bench CONFIG`: our engine beside the loops that people would write instead, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vitscale.bench.case import Case
    from vitscale.bench.run import OnRow
    from vitscale.results.record import Record
    from vitscale.study.case import Outcome

TRACED = 10  # updates after the counted ones, for where time goes


def bench(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A recipe's name, or the path of a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as train.micro_batch_size=64.")
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="Processes, one per device.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where records.jsonl goes. Default: benches/<recipe>-<time>.")
    ] = None,
    updates: Annotated[int, typer.Option("--updates", min=5, help="Counted updates of each row.")] = 30,
    warmup: Annotated[int, typer.Option("--warmup", min=1, help="Updates before them, not counted.")] = 15,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often every row runs.")] = 1,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="WORD", help="Only rows whose name holds WORD; repeatable.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="Default: CUDA if there is.")
    ] = None,
) -> int:
    """Measure images/s and memory of a config beside plain timm, DDP, FSDP2 and DeepSpeed.

    Every row runs in a fresh process group over the same random images, which stay
    on the device, with AdamW and without clipping or accumulation. Only rows of one
    precision triple (compute/weights/reduction) are compared; ours runs in each.
    Exit code 3 if one of our own rows did not end well.

    Examples:

      vitscale bench digits
      vitscale bench synthetic-vit-b16 precision.compute=bf16 train.micro_batch_size=64
      vitscale bench synthetic-vit-b16 --only vitscale --only "timm loop"
      vitscale bench cifar10-vit-b16 --nproc 2 --rounds 3
    """
    import time

    from vitscale.bench.run import Bench, check_out, run_bench
    from vitscale.bench.table import ours_failed
    from vitscale.cli.preflight import check_devices
    from vitscale.cli.unheard import go_on_unheard
    from vitscale.config.decide import decide
    from vitscale.config.load import load_config
    from vitscale.errors import EXIT_OK, EXIT_RUN_FAILED
    from vitscale.study.machine import this_machine

    run = load_config(config, overrides or [])
    if out is not None:
        check_out(out)
    check_devices(run, device, nproc)
    machine = this_machine(device)
    decide(run, world_size=nproc, device_type=machine.device_type)
    folder = out or Path("benches") / f"{Path(config).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = machine.facts.cuda_names[:nproc]
    trace = TRACED if machine.device_type == "cuda" or nproc > 1 else 0
    work = Bench(run, nproc, machine.device_type, names, warmup, updates, trace, rounds, tuple(only or ()))
    go_on_unheard()
    records = run_bench(work, folder, _progress())
    _print(records)
    typer.echo(f"records: {folder / 'records.jsonl'}")
    for record in (failed := ours_failed(records)):
        typer.echo(f"failed: {record.case}: {record.cause.sentence if record.cause else record.outcome}", err=True)
    return EXIT_RUN_FAILED if failed else EXIT_OK


def _progress() -> OnRow:
    def tell(index: int, total: int, row: Case, outcome: Outcome | None) -> None:
        if outcome is None:
            if index == 0:
                typer.echo(f"{total} rows, one after the other; DeepSpeed's may compile an operator first, for minutes")
            typer.echo(f"[{index + 1}/{total}] {row.title} ...", nl=False)
        elif outcome.kind == "ok":
            typer.echo(f" {outcome.seconds:.0f} s")
        else:
            typer.echo(f" {outcome.kind}: {' '.join((outcome.sentence or '').split())}")

    return tell


def _print(records: list[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitscale.bench.table import COLUMNS, remarks, table_rows

    for triple, rows in table_rows(records).items():
        table = Table(title=f"precision {triple}", title_justify="left")
        table.add_column("", overflow="fold")
        for name in COLUMNS[:-1]:
            table.add_column(name, justify="right")
        table.add_column(COLUMNS[-1], overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(highlight=False).print(table)
    for remark in remarks(records):
        typer.echo(remark)
