"""`vitscale report DIR`: what a study shows, as a page, as Markdown or in the terminal. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FORMATS = ("html", "md", "terminal")


def report(
    study: Annotated[Path, typer.Argument(metavar="DIR", help="A study's folder, or its records.jsonl.")],
    format: Annotated[
        str,
        typer.Option("--format", "-f", metavar="html|md|terminal", help="md and terminal print, and write no file."),
    ] = "html",
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", help="Also write every figure as SVG and PNG into this folder."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", metavar="FILE", help="Also write all records as FILE: .csv, .parquet or .log (mllog)."
        ),
    ] = None,
) -> None:
    """Explain a study: verdict, scaling curves, where time goes, memory, accuracy, warnings, environment.

    Writes report.html (one file that needs no network), report.md and cases.csv beside the records. A study that still
    runs, or was cut off, can be reported too. Figures as files need the extra: pip install 'vitscale\\[figures]'.

    Examples:

      vitscale report runs/digits-demo
      vitscale report runs/digits-demo --format md > verdict.md
      vitscale report runs/digits-demo --format terminal
      vitscale report runs/digits-demo --figures figures/
      vitscale report runs/digits-demo --export records.parquet
    """
    from vitscale.analysis.summarise import summarise
    from vitscale.errors import ConfigError
    from vitscale.results.records import read_study

    if format not in _FORMATS:
        raise ConfigError(f"--format {format} is not one of {', '.join(_FORMATS)}")
    records, broken = read_study(study)
    summary = summarise(records, broken)
    written = []  # files first: `vitscale report DIR | head` must not lose them
    if format == "html":
        from vitscale.report.files import write_report

        written.append(f"report: {write_report(summary, study if study.is_dir() else study.parent)}")
    if figures is not None:
        from vitscale.report.images import write_figures

        written.append(f"{len(write_figures(summary, figures))} files in {figures}")
    if export is not None:
        from vitscale.results.export import export_records
        from vitscale.results.records import latest

        export_records(latest(records), export)
        written.append(f"records: {export}")
    if format == "md":
        from vitscale.report.markdown import render

        typer.echo(render(summary), nl=False)
    else:
        from rich.console import Console

        from vitscale.report.terminal import show

        show(summary, Console(highlight=False))
    for line in written:
        typer.echo(line, err=format == "md")
