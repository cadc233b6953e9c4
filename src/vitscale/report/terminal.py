"""The report in a terminal: verdict, a short table and how many warnings there are; whole on 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from vitscale.analysis.summary import Summary
from vitscale.report import verdict, words
from vitscale.report.order import in_reading_order
from vitscale.report.table import Table, table

_MOST_ROWS = 30
_WANTED = ("repeats", "step_time_s", "images_per_s", "scaling_efficiency", "mfu", "peak_allocated_bytes", "accuracy")
_TITLES = {
    "step_time_s": "ms",
    "scaling_efficiency": "effic.",
    "peak_allocated_bytes": "GiB",
    "accuracy": "acc., %",
}


def show(summary: Summary, console: Console) -> None:
    """Print it."""
    for part in _parts(in_reading_order(summary)):
        console.print(part)


def _parts(summary: Summary) -> Iterator[RenderableType]:
    yield Text(words.clean(summary.study), style="bold")
    yield ""
    for statement in verdict.statements(summary):
        yield Text.assemble((f"{statement.topic}: ", "bold"), statement.sentence)
    yield ""
    yield _table(table(summary), summary)
    for sentence in words.left_out(summary):
        yield Text(sentence)
    counts = [(s, sum(1 for f in summary.findings if f.severity == s)) for s in ("error", "warning", "note")]
    told = words.listing([words.plural(count, severity) for severity, count in counts if count])
    if told:
        yield Text(f"The comparison has {told}; the report says what they are.")


def _table(made: Table, summary: Summary) -> RichTable:
    """Cases with few columns: a word for those that gave no measurement."""
    columns = {column.name: index for index, column in enumerate(made.columns)}
    wanted = [name for name in _WANTED if name in columns]
    shown = RichTable(box=None, pad_edge=False, padding=(0, 1))
    shown.add_column("case", overflow="fold")
    for name in wanted:
        title = _TITLES.get(name, made.columns[columns[name]].title)
        shown.add_column(title, justify="right", no_wrap=True)
    outcome = columns.get("outcome")
    for label, row, case in list(zip(made.labels, made.rows, summary.cases, strict=True))[:_MOST_ROWS]:
        cells = [Text(row[columns[name]].text) for name in wanted]
        if not case.repeats and outcome is not None:
            cells = [Text(""), *[Text("") for _ in wanted[1:]]]
            label = f"{label}: {row[outcome].text}"
        shown.add_row(Text(label), *cells)
    if len(made.rows) > _MOST_ROWS:
        shown.add_row(Text(f"and {len(made.rows) - _MOST_ROWS} more"))
    return shown
