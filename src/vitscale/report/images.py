"""Figures as SVG and PNG files, through kaleido (an extra), which draws them in a Chrome or Chromium."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from vitscale.analysis.summary import Summary
from vitscale.errors import RunFailed
from vitscale.report.figure import Panel
from vitscale.report.figures import figures
from vitscale.report.order import in_reading_order
from vitscale.results.files import output_errors

FORMATS = ("svg", "png")
_WIDTH, _SCALE = 800, 2
_MISSING = "--figures needs kaleido and a Chrome or Chromium: pip install 'vitscale[figures]'"


def write_figures(summary: Summary, folder: Path) -> list[Path]:
    """Write each panel as SVG and PNG into the folder; return the files."""
    if find_spec("kaleido") is None:
        raise RunFailed(_MISSING)
    import kaleido

    with output_errors(folder, "give --figures a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        {"fig": _alone(panel, len(figure.legend) > 1), "path": str(path), "opts": _options(panel, kind)}
        for figure in figures(in_reading_order(summary))
        for panel in figure.panels
        for kind in FORMATS
        for path in (folder / f"{panel.name}.{kind}",)
    ]
    written = [Path(str(job["path"])) for job in jobs]  # kaleido 1.0 empties what it is given
    try:
        kaleido.write_fig_from_object_sync(jobs)
    except Exception as error:  # kaleido's and its browser's errors have no common class
        name = type(error).__name__
        raise RunFailed(f"{_MISSING}, or set BROWSER_PATH to one; kaleido said {name}: {error}") from error
    return written


def _options(panel: Panel, kind: str) -> dict[str, object]:
    return {"format": kind, "width": _WIDTH, "height": _height(panel), "scale": _SCALE}


def _height(panel: Panel) -> int:
    height: int = panel.layout["height"]
    return height + 120


def _alone(panel: Panel, legend: bool) -> dict[str, object]:
    """The panel with the title and legend that the page gives it otherwise, on white; hidden curves stay away."""
    margin = {**panel.layout["margin"], "t": 48}
    title = {"text": panel.title, "x": 0.02}
    look = {"title": title, "margin": margin, "paper_bgcolor": "white", "showlegend": legend, "height": _height(panel)}
    data = [trace for trace in panel.data if trace.get("visible", True) is True]
    return {"data": data, "layout": {**panel.layout, **look}}
