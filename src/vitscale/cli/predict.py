"""`vitscale predict RUN IMAGES`: the likeliest classes of image files, as CSV or JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Kinds of device."""

    cpu = "cpu"
    cuda = "cuda"


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as train --out made it.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="An image file, or a folder with sub-folders.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to FILE, .csv or .json, not to stdout.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, not CSV.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Classes per image.")] = 5,
    checkpoint: Annotated[str, typer.Option("--checkpoint", "-c", help="best, last, or a checkpoint's name.")] = "best",
    ema: Annotated[
        bool | None, typer.Option("--ema/--no-ema", help="Take the averaged weights; default: as eval.use_ema says.")
    ] = None,
    device: Annotated[Device | None, typer.Option("--device", help="Default: CUDA where there is one.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images per forward.")] = 64,
) -> None:
    """Predict the classes of images with a trained model.

    Columns: path, class, probability, class_2, probability_2, ... Images are
    resized and normalised as in the run's own evaluation.

    Examples:

      vitscale predict runs/digits three.png
      vitscale predict runs/digits photos/ --top 1 --out predictions.csv
      vitscale predict runs/digits photos/ --json | jq '.[].class'
    """
    from vitscale.results.run_folder import check_is_run

    _check_output(out, json)
    check_is_run(run)
    from vitscale.distributed import pick_device
    from vitscale.predict import as_csv, as_json
    from vitscale.predict import predict as run_model
    from vitscale.results.files import write_atomically
    from vitscale.trained import open_run

    where = pick_device(device, 0)
    trained = open_run(run, checkpoint, ema=ema)
    predictions = list(run_model(trained, images, device=where, top=top, micro_batch_size=batch_size))
    text = as_json(predictions) if json or (out and out.suffix == ".json") else as_csv(predictions)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    typer.echo(f"wrote {out}: {len(predictions):,} image{'s' if len(predictions) != 1 else ''}")


def _check_output(out: Path | None, json: bool) -> None:
    from vitscale.errors import ConfigError

    if out is None:
        return
    if json:
        raise ConfigError("--json is for stdout; with --out the name's end, .csv or .json, says what is written")
    if out.suffix not in (".csv", ".json"):
        raise ConfigError(f"--out {out} must end in .csv or .json")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} cannot be written: the folder {out.parent} does not exist")
