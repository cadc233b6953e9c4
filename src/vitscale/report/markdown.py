"""The report as Markdown for a pull request: verdict, a table, what did not run, warnings, environment. No figures."""

from __future__ import annotations

import html
import re

from vitscale.analysis.summary import Summary
from vitscale.report import environment, verdict, words
from vitscale.report.order import in_reading_order
from vitscale.report.table import MAIN, Cell, Table, table

_MOST_ROWS = 40
_MARKS = re.compile(r"([\\`*_\[\]#|~$])")


def escape(value: object) -> str:
    """Text that Markdown shows as it is: no markup, no mention of a person."""
    text = _MARKS.sub(r"\\\1", words.clean(value))
    return html.escape(text, quote=False).replace("@", "&#64;")


def render(summary: Summary) -> str:
    """The whole document."""
    summary = in_reading_order(summary)
    first, *rest = verdict.statements(summary)
    parts = [f"## {escape(summary.study)}", f"**{escape(first.sentence)}**"]
    if rest:
        parts.append("\n".join(f"* **{escape(s.topic)}.** {escape(s.sentence)}" for s in rest))
    parts += [*_table(table(summary)), *_failures(summary), *_findings(summary)]
    if summary.broken_lines:
        parts.append(escape(words.left_out(summary)[-1]))
    if on := environment.headline(summary):
        parts.append(f"Measured on {escape(on)}.")
    return "\n\n".join(parts) + "\n"


def _table(made: Table) -> list[str]:
    if not made.rows:
        return []
    keep = [i for i, column in enumerate(made.columns) if column.name in MAIN]
    head = ["case", *(made.columns[i].title for i in keep)]
    lines = [_line(head), _line(["---"] + ["---:"] * len(keep), marks=True)]
    for label, row in list(zip(made.labels, made.rows, strict=True))[:_MOST_ROWS]:
        lines.append(_line([label, *(_text(row[i]) for i in keep)]))
    parts = []
    if made.shared:
        told = "; ".join(f"{title} {value}" for title, value in made.shared)
        parts.append(f"The same in all cases: {escape(told)}.")
    parts.append("\n".join(lines))
    if len(made.rows) > _MOST_ROWS:
        parts.append(f"{_MOST_ROWS} of {len(made.rows)} cases; all are in cases.csv.")
    return parts


def _text(cell: Cell) -> str:
    return f"{cell.text} ({cell.interval})" if cell.interval else cell.text


def _line(cells: list[str], marks: bool = False) -> str:
    return f"| {' | '.join(cells if marks else map(escape, cells))} |"


def _failures(summary: Summary) -> list[str]:
    names = words.labels(summary.cases, summary.axes)
    lines = [
        f"* {escape(names[case.name])}: {escape(case.causes[0].sentence)}" for case in summary.cases if case.causes
    ]
    return ["### Failures", "\n".join(lines)] if lines else []


def _findings(summary: Summary) -> list[str]:
    found = sorted(summary.findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))
    lines = [
        f"* **{finding.severity}** ({escape(finding.rule)}): {escape(words.sentence(finding.sentence))}"
        for finding in found
    ]
    return ["### Warnings", "\n".join(lines)] if lines else []
