"""Writes a report beside its records: report.html, report.md and cases.csv, each whole or not at all."""

from __future__ import annotations

from pathlib import Path

from vitscale.analysis.summary import Summary
from vitscale.report import html, markdown, table
from vitscale.report.order import in_reading_order
from vitscale.results.files import write_atomically

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TABLE_FILE = "cases.csv"


def write_report(summary: Summary, out: Path) -> Path:
    """Write the three files into `out`; return the page's path."""
    write_atomically(out / TABLE_FILE, table.to_csv(in_reading_order(summary)))
    write_atomically(out / MARKDOWN_FILE, markdown.render(summary))
    write_atomically(out / REPORT_FILE, html.render(summary))
    return out / REPORT_FILE
