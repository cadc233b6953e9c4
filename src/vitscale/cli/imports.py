"""`vitscale import TABLE --out DIR`: a published table as a study's records. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_table(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV file with a header.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the records; new or empty.")],
    facts: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=VALUE", help="What the source's text says of all rows; may be repeated."),
    ] = None,
) -> None:
    """Turn a published table into records, so that report, compare and the lint work on it.

    The table needs a column for the number of devices (gpus, devices, world_size) and one with a time
    (seconds_per_epoch, step_time_ms, images_per_s, or the parts of an update such as forward_ms). What the table does
    not say stays unknown, and the lint says so. Rows that agree in all that is known are repeats of one case.

    Examples:

      vitscale import published.csv --out runs/published
      vitscale import published.csv --out runs/published --set precision=fp32 --set lr=1e-4
      vitscale report runs/published
    """
    from vitscale.results.files import output_errors
    from vitscale.results.published import import_records
    from vitscale.results.record import RECORDS_FILE
    from vitscale.results.records import write_records
    from vitscale.results.run_folder import check_folder

    imported = import_records(table, _facts(facts or []))
    with output_errors(out, "name another --out"):
        check_folder(out)
        if out.exists() and any(out.iterdir()):
            from vitscale.errors import RunFolderError

            raise RunFolderError(f"{out} is not empty; name another --out")
        write_records(out / RECORDS_FILE, imported.records)
    cases = len({record.case for record in imported.records})
    typer.echo(f"{len(imported.records)} rows of {table.name} are {cases} cases in {out / RECORDS_FILE}")
    if imported.unknown:
        typer.echo(f"left out, because nothing here knows them: column {', '.join(imported.unknown)}")
    typer.echo(f"next: vitscale report {out}")


def _facts(items: list[str]) -> dict[str, str]:
    from vitscale.errors import ConfigError

    facts = {}
    for item in items:
        name, found, value = item.partition("=")
        if not found or not value.strip():
            raise ConfigError(f"--set {item}: write COLUMN=VALUE, such as precision=fp32")
        facts[name.strip()] = value.strip()
    return facts
