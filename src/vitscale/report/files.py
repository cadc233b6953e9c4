"""Writes a report beside its records: report.html, report.md and cases.csv, each whole or not at all."""

from __future__ import annotations

from pathlib import Path

from vitscale.analysis.summary import Summary
from vitscale.report import html, markdown, table
from vitscale.report.order import in_reading_order
from vitscale.results.files import output_errors, write_atomically

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TABLE_FILE = "cases.csv"


def write_report(summary: Summary, out: Path) -> Path:
    """Write the three files into `out`; return the page's path."""
    texts = {
        TABLE_FILE: table.to_csv(in_reading_order(summary)),
        MARKDOWN_FILE: markdown.render(summary),
        REPORT_FILE: html.render(summary),
    }
    with output_errors(out, "--format terminal and --format md work without writing"):
        for name, text in texts.items():
            write_atomically(out / name, text)
    return out / REPORT_FILE
