"""`vitscale export RUN FILE`: one safetensors file that timm loads as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as train --out made it.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; must end in .safetensors.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", "-c", help="best, last, or a checkpoint's name.")] = "best",
    ema: Annotated[
        bool | None, typer.Option("--ema/--no-ema", help="Take the averaged weights; default: as eval.use_ema says.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write the trained weights, in fp32 and under timm's names, to FILE.

    The line of Python that loads them is printed. Classes, normalisation and
    timm's arguments go into the file's metadata.

    Examples:

      vitscale export runs/digits digits.safetensors
      vitscale export runs/digits last.safetensors --checkpoint last --force
    """
    from vitscale.export import check_target
    from vitscale.export import export as write
    from vitscale.trained import open_run

    check_target(file, force=force)
    trained = open_run(run, checkpoint, ema=ema)
    exported = write(trained, file, force=force)
    which = f"{trained.checkpoint.name}{' (EMA)' if trained.ema else ''}"
    typer.echo(f"wrote {exported.path}, the weights of {which}; load them with\n{exported.create_model}")
