"""The report as one HTML file that needs no network: verdict, figures, table, failures, warnings, environment.

In: a Summary. Out: text. The parts of the page are built in page_parts and page_figures, its look is page/page.css and
its behaviour page/page.js; plotly's script, taken from the installed package, is embedded once. A policy in the page
forbids everything but these two scripts, by their hashes, so that no name in a record could run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from vitscale.analysis.summary import Summary
from vitscale.report import page_figures, page_parts, table, words
from vitscale.report.figure import DARK, Figure
from vitscale.report.figures import figures
from vitscale.report.order import in_reading_order


def render(summary: Summary) -> str:
    """The whole page."""
    from plotly.offline import get_plotlyjs

    summary = in_reading_order(summary)
    made = figures(summary)
    plotly, script = get_plotlyjs(), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        policy=_policy(plotly, script),
        version=version("vitscale"),
        title=page_parts.escape(f"{words.clean(summary.study)}: vitscale report"),
        style=_asset("page.css"),
        body=_body(summary, made),
        data=_json(_data(summary, made)),
        plotly=plotly,
        script=script,
    )


def _asset(name: str) -> str:
    return (files("vitscale.report") / "page" / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _body(summary: Summary, made: list[Figure]) -> str:
    parts = [
        page_parts.verdict_section(summary),
        page_figures.section(summary, made),
        page_parts.cases(table.table(summary), summary),
        page_parts.failures(summary),
        page_parts.findings(summary),
        page_parts.environment(summary),
        page_parts.reading(),
    ]
    sections = "\n".join(part for part in parts if part)
    head = page_parts.header(summary, [part for part in parts if part])
    return f'<div class="page">\n{head}\n<main>\n{sections}\n</main>\n{page_parts.footer(summary)}\n</div>'


def _data(summary: Summary, made: list[Figure]) -> dict[str, Any]:
    panels = [
        {
            "name": panel.name,
            "title": panel.title,
            "data": panel.data,
            "layout": panel.layout,
            "legend": len(figure.legend) > 1,
        }
        for figure in made
        for panel in figure.panels
    ]
    steps, steps_layout = page_figures.steps(summary)
    csv = table.to_csv(summary)
    return {"panels": panels, "dark": DARK, "csv": csv, "steps": steps, "steps_layout": steps_layout}


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
