"""`vitscale eval RUN`: exact accuracy of a checkpoint on a split of the run's own data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from vitscale.evaluate import EvalResult

MAX_ROWS = 20  # of the table per class; eval.json always has all classes


class Split(StrEnum):
    """The splits of a data set."""

    train = "train"
    val = "val"
    test = "test"


class Device(StrEnum):
    """Kinds of device."""

    cpu = "cpu"
    cuda = "cuda"


def eval(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as train --out made it.")],
    split: Annotated[Split, typer.Option("--split", "-s", help="Which images.")] = Split.val,
    checkpoint: Annotated[str, typer.Option("--checkpoint", "-c", help="best, last, or a checkpoint's name.")] = "best",
    ema: Annotated[
        bool | None, typer.Option("--ema/--no-ema", help="Take the averaged weights; default: as eval.use_ema says.")
    ] = None,
    device: Annotated[Device | None, typer.Option("--device", help="Default: CUDA where there is one.")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Images per forward; default: as in training.")
    ] = None,
) -> None:
    """Evaluate a trained model: top-1, top-5 and each class; every image counts once.

    Runs in one process and in fp32, whatever the run was trained in. The figures
    and the confusion matrix go to RUN/eval.json.

    Examples:

      vitscale eval runs/digits
      vitscale eval runs/digits --split train --checkpoint last
    """
    from vitscale.results.run_folder import check_is_run

    check_is_run(run)  # before torch is loaded, which takes seconds
    from vitscale.distributed import pick_device
    from vitscale.evaluate import evaluate_run
    from vitscale.results.files import write_json
    from vitscale.trained import open_run

    where = pick_device(device, 0)
    trained = open_run(run, checkpoint, ema=ema)
    result = evaluate_run(trained, split.value, where, batch_size)
    about = {"split": split.value, "checkpoint": trained.checkpoint.name, "update": trained.update, "ema": trained.ema}
    write_json(run / "eval.json", {**about, "classes": trained.classes, **result.as_dict()})
    _print(result, trained.classes, f"{trained.checkpoint.name}{' (EMA)' if trained.ema else ''} on {split.value}")
    typer.echo(f"wrote {run / 'eval.json'}")


def _print(result: EvalResult, classes: tuple[str, ...], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    total = Table(title=title)
    for heading in ("top-1", "top-5", "loss", "images"):
        total.add_column(heading, justify="right")
    total.add_row(f"{result.top1:.2%}", f"{result.top5:.2%}", f"{result.loss:.4f}", f"{result.num_samples:,}")
    console = Console()
    console.print(total)
    console.print(_class_table(result, classes))


def _class_table(result: EvalResult, classes: tuple[str, ...]) -> Table:
    """One row per class; of many classes only the worst, worst first."""
    from rich.markup import escape
    from rich.table import Table

    seen = [(share, index) for index, share in enumerate(result.per_class) if share is not None]
    shown = sorted(seen)[:MAX_ROWS] if len(seen) > MAX_ROWS else seen
    table = Table(title=f"the {MAX_ROWS} worst of {len(seen)} classes" if len(seen) > MAX_ROWS else None)
    table.add_column("class")
    table.add_column("accuracy", justify="right")
    table.add_column("images", justify="right")
    table.add_column("most often taken for")
    for share, index in shown:
        row = result.confusion[index].clone()
        images = int(row.sum())
        row[index] = 0
        wrong = int(row.max())
        taken = f"{escape(classes[int(row.argmax())])} ({wrong}x)" if wrong else ""
        table.add_row(escape(classes[index]), f"{share:.2%}", f"{images:,}", taken)
    return table
