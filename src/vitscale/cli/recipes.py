"""`vitscale recipes`: what is packaged, with what each needs and what to expect of it."""

from __future__ import annotations

from typing import Annotated

import typer


def recipes(json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List the packaged recipes and studies: kind, hardware, time, expected result.

    A recipe's name is the CONFIG of train, show and verify, a study's the STUDY of study. Nothing in them is fixed: any
    key can be overridden, and `vitscale show NAME > my.yaml` gives a file of a recipe to edit.

    Examples:

      vitscale recipes
      vitscale train digits
      vitscale show cifar10-vit-b16 train.global_batch_size=128
      vitscale study strong-scaling --quick
    """
    from vitscale.config.load import recipes as packaged
    from vitscale.config.study import studies

    listed = [*packaged(), *studies()]
    if json:
        import json as json_module
        from dataclasses import asdict

        typer.echo(json_module.dumps([asdict(recipe) for recipe in listed], indent=2))
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for recipe in listed:
        console.print(Text.assemble((recipe.name, "bold"), f" ({recipe.kind})"))
        console.print(Padding(Text(recipe.summary), (0, 0, 0, 2), expand=False))
        for name in ("hardware", "time", "expected"):
            console.print(Padding(Text(f"{name}: {getattr(recipe, name)}"), (0, 0, 0, 4), expand=False))
