"""The parts of the page around the figures: head, verdict, table, failures, warnings, environment, how to read it.

Each function returns HTML; everything that people or processes named passes `escape`.
"""

from __future__ import annotations

import html
import re
from importlib.metadata import version

from vitscale.analysis.summary import CaseSummary, Finding, Summary
from vitscale.report import environment as surroundings
from vitscale.report import tiles, verdict, words
from vitscale.report.table import MAIN, Cell, Column, Table
from vitscale.results.record import Cause

_UNIT = re.compile(r"(\d) (%|GiB|GB/s|ms|s|min|h|images/s|GPUs?|process(?:es)?|devices?|times)(?=\W)")
_SEVERITY = ("error", "warning", "note")
_MOST_CASES_NAMED = 6
_SHORT_LABEL = 44
_READING = (
    ("images/s", "Images of all devices together, divided by the median time of an update. Warm-up is left out."),
    ("Interval", "In parentheses or under a figure: 95 %, from the repeats. Without repeats there is none."),
    ("Noise floor", "What repeats of the same case differ by. No smaller difference is claimed in this report."),
    ("speed-up, scaling_efficiency", "Images/s beside the smallest number of devices measured; 1.00 is proportional."),
    (
        "micro, accum, global",
        "Short for micro_batch_size (per device, per forward), grad_accum_steps, global_batch_size.",
    ),
    ("exposed communication", "Time in which a device waits for the exchange of tensors and computes nothing."),
    ("straggler wait", "Time in which a device waits for a slower one to begin its part of that exchange."),
    ("MFU", "The model's own FLOP/s by the makers' dense peak of all devices; empty where the peak is unknown."),
    (
        "peak allocated",
        "The fullest device; peak reserved is what PyTorch's allocator held; RSS is host memory of a process.",
    ),
    ("n/a", "Not measured, or not to be told apart. Never zero, and never a guess."),
)


def escape(value: object) -> str:
    """Text for element content and attributes."""
    return html.escape(words.clean(value), quote=True)


def sentence(value: object) -> str:
    """The same for running text: a figure and its unit stay on one line."""
    return _UNIT.sub("\\1\u00a0\\2", escape(value))


def header(summary: Summary, sections: list[str]) -> str:
    """Name, what was run, on what, and links to the sections that follow."""
    titles = [re.search(r'<section id="([a-z]+)"[^>]*><h2[^>]*>(.*?)</h2>', section) for section in sections]
    links = " ".join(f'<a href="#{found[1]}">{found[2]}</a>' for found in titles if found)
    on = surroundings.headline(summary)
    return (
        '<header><div class="over"><span>vitscale study report</span>'
        '<button type="button" id="theme" aria-label="Switch between light and dark">Dark</button></div>'
        f"<h1>{escape(summary.study)}</h1>"
        f'<p class="context">{escape(_what(summary))}</p>'
        + (f'<p class="context">{escape(on)}</p>' if on else "")
        + f'<nav aria-label="Sections">{links}</nav></header>'
    )


def _what(summary: Summary) -> str:
    mode = {"weak": "weak scaling", "strong": "strong scaling"}.get(summary.mode)
    if mode == "strong scaling":
        mode += {"global": ", global batch fixed", "per_device": ", batch per device fixed"}.get(
            summary.fixed or "", ""
        )
    axes = f"varied: {', '.join(words.clean(axis) for axis in summary.axes)}" if summary.axes else ""
    runs = f"{words.plural(len(summary.cases), 'case')}, {words.plural(summary.records, 'record')}"
    return " · ".join(part for part in (mode, axes, runs) if part)


def verdict_points(summary: Summary) -> str:
    """All statements but the first, under their topics."""
    rest = verdict.statements(summary)[1:]
    points = "".join(f"<dt>{escape(s.topic)}</dt><dd>{sentence(s.sentence)}</dd>" for s in rest)
    return f'<dl class="points">{points}</dl>' if points else ""


def verdict_tiles(summary: Summary) -> str:
    """The few figures that a person takes away."""
    made = "".join(
        f"<li><span>{escape(t.title)}</span><b>{escape(t.figure)}</b><span>{escape(t.aside)}</span></li>"
        for t in tiles.tiles(summary)
    )
    return f'<ul class="tiles">{made}</ul>' if made else ""


def verdict_section(summary: Summary) -> str:
    lead = verdict.statements(summary)[0]
    return (
        '<section id="verdict" aria-label="Verdict"><h2>Verdict</h2>'
        f'<p class="lead">{sentence(lead.sentence)}</p>{verdict_tiles(summary)}{verdict_points(summary)}</section>'
    )


# --- table --------------------------------------------------------------------------------------------------------


def cases(made: Table, summary: Summary) -> str:
    """The table of all cases, to sort, filter and take away."""
    shared = "; ".join(f"{escape(title)} <b>{escape(value)}</b>" for title, value in made.shared)
    wide = [any(row[index].interval for row in made.rows) for index in range(len(made.columns))]
    rows = "".join(
        _case_row(label, made.columns, row, wide, case)
        for label, row, case in zip(made.labels, made.rows, summary.cases, strict=True)
    )
    filtering = (
        '<label>Filter cases <input type="search" id="filter" autocomplete="off"></label>' if len(made.rows) > 8 else ""
    )
    return (
        '<section id="cases"><h2>Cases</h2>'
        + (f'<p class="shared">The same in all cases: {shared}.</p>' if shared else "")
        + f'<div class="bar">{filtering}<button type="button" data-csv>Save as CSV</button></div>'
        '<div class="scroll" role="region" aria-label="Table of cases" tabindex="0"><table class="cases">'
        f"<thead><tr>{_case_head(made, wide)}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _case_head(made: Table, wide: list[bool]) -> str:
    """Headers are buttons that sort; data-at is the cell that they sort by, since intervals have cells of their own."""
    parts, at = ['<th scope="col" class="text" data-at="0"><button type="button">case</button></th>'], 1
    for column, two in zip(made.columns, wide, strict=True):
        span = ' colspan="2"' if two else ""
        name = escape(column.title)
        parts.append(
            f'<th scope="col"{_kind(column, two)} data-at="{at}"{span}><button type="button">{name}</button></th>'
        )
        at += 1 + two
    return "".join(parts)


def _kind(column: Column, wide: bool = False) -> str:
    kinds = ["text"] if column.name in _TEXT or wide else []
    kinds += [] if column.name in MAIN else ["screen"]
    return f' class="{" ".join(kinds)}"' if kinds else ""


_TEXT = {"engine", "model", "precision", "device", "data", "optimizer", "outcome", "accuracy_split"}


def _case_row(
    label: str, columns: tuple[Column, ...], row: tuple[Cell, ...], wide: list[bool], case: CaseSummary
) -> str:
    cells = "".join(_cell(column, cell, two) for column, cell, two in zip(columns, row, wide, strict=True))
    lost = "" if case.repeats else ' class="lost"'
    short = ' class="short"' if len(label) <= _SHORT_LABEL else ""
    return f'<tr{lost}><th scope="row"{short} title="{escape(case.name)}">{escape(label)}</th>{cells}</tr>'


def _cell(column: Column, cell: Cell, wide: bool) -> str:
    value = "" if cell.value is None else f' data-value="{escape(cell.value)}"'
    screen = "" if column.name in MAIN else " screen"
    interval = f'<td class="interval{screen}">{escape(cell.interval)}</td>' if wide else ""
    return f"<td{_kind(column)}{value}>{escape(cell.text)}</td>{interval}"


# --- failures -----------------------------------------------------------------------------------------------------


def failures(summary: Summary) -> str:
    """Each case that has runs without a result, with the causes."""
    lost = [case for case in summary.cases if case.causes]
    if not lost:
        return ""
    names = words.labels(summary.cases, summary.axes)
    items = "".join(_failure(case, names[case.name]) for case in lost)
    return f'<section id="failures"><h2>Failures</h2><ul class="findings">{items}</ul></section>'


def _failure(case: CaseSummary, label: str) -> str:
    kinds = [kind for kind in case.outcomes if kind != "ok"]
    causes = "".join(_cause(cause) for cause in _different(case.causes))
    what = escape(", ".join(words.OUTCOMES[kind] for kind in kinds).capitalize())
    return f'<li><span class="severity">{what}</span><div><p><b>{escape(label)}</b></p>{causes}</div></li>'


def _different(causes: tuple[Cause, ...]) -> list[Cause]:
    return list({(cause.sentence, cause.rank, cause.exit_code): cause for cause in causes}.values())


def _cause(cause: Cause) -> str:
    where = [f"rank {cause.rank}"] if cause.rank is not None else []
    where += [f"exit code {cause.exit_code}"] if cause.exit_code is not None else []
    told = escape(cause.sentence) + (f" ({', '.join(where)})" if where else "")
    tail = words.clean_lines(cause.stderr_tail)
    lines = f'<details class="more"><summary>last lines of stderr</summary><pre>{html.escape(tail)}</pre></details>'
    return f"<p>{told}</p>{lines if tail.strip() else ''}"


# --- findings -----------------------------------------------------------------------------------------------------


def findings(summary: Summary) -> str:
    """What makes a comparison unfair or doubtful, the gravest first; then the cases' own warnings."""
    found = sorted(summary.findings, key=lambda finding: _SEVERITY.index(finding.severity))
    names = words.labels(summary.cases, summary.axes)
    items = "".join(_finding(finding, names) for finding in found) + _measurement_warnings(summary, names)
    body = f'<ul class="findings">{items}</ul>' if items else '<p class="quiet">None was found.</p>'
    return f'<section id="warnings"><h2>Warnings</h2>{body}</section>'


def _finding(finding: Finding, names: dict[str, str]) -> str:
    about = _which([names.get(case, words.clean(case)) for case in finding.cases], names)
    told = f"Rule {finding.rule}{f': {about}' if about else ''}"
    return (
        f'<li><span class="severity {finding.severity}">{finding.severity.capitalize()}</span>'
        f'<div><p>{sentence(words.sentence(finding.sentence))}</p><p class="quiet">{escape(told)}</p></div></li>'
    )


def _which(cases: list[str], names: dict[str, str]) -> str:
    if len(names) > 1 and set(cases) >= set(names.values()):
        return "all cases"
    return words.listing(cases, _MOST_CASES_NAMED)


def _measurement_warnings(summary: Summary, names: dict[str, str]) -> str:
    """Doubts of a measurement about itself, each once, with the cases that have it."""
    told: dict[str, list[str]] = {}
    for case in summary.cases:
        for warning in dict.fromkeys(case.warnings):
            told.setdefault(warning, []).append(names[case.name])
    return "".join(
        f'<li><span class="severity">Measured</span><div><p>{sentence(words.sentence(warning))}</p>'
        f'<p class="quiet">{escape(_which(cases, names))}</p></div></li>'
        for warning, cases in told.items()
    )


# --- environment and the end --------------------------------------------------------------------------------------


def environment(summary: Summary) -> str:
    """Versions and devices; a column for each different environment, rows that differ marked and first."""
    rows = surroundings.rows(summary)
    if not rows:
        return (
            '<section id="environment"><h2>Environment</h2>'
            '<p class="quiet">The records do not say what they were measured on.</p></section>'
        )
    count = len(summary.environments)
    head = "".join(f'<th scope="col" class="text">{n + 1}</th>' for n in range(count))
    head_row = f'<thead><tr><th scope="col">environment</th>{head}</tr></thead>' if count > 1 else ""
    body = "".join(_fact(name, values) for name, values in rows)
    note = f"<p class='quiet'>{count} different environments; rows that differ stand first.</p>" if count > 1 else ""
    return (
        f'<section id="environment"><h2>Environment</h2>{note}'
        '<div class="scroll" role="region" aria-label="Environment" tabindex="0">'
        f'<table class="facts">{head_row}<tbody>{body}</tbody></table></div></section>'
    )


def _fact(name: str, values: list[str]) -> str:
    differs = ' class="differs"' if len(set(values)) > 1 else ""
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr{differs}><th scope="row">{escape(name)}</th>{cells}</tr>'


def reading() -> str:
    """What the words and marks mean."""
    items = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in _READING)
    return f'<section id="reading"><h2>How to read this</h2><dl class="reading">{items}</dl></section>'


def footer(summary: Summary) -> str:
    """Who wrote it, from what."""
    broken = f", {words.plural(summary.broken_lines, 'unreadable line')} skipped" if summary.broken_lines else ""
    return (
        f"<footer>Written by vitscale {escape(version('vitscale'))} from {words.plural(summary.records, 'record')}"
        f"{broken}. The raw values per update are in records.jsonl beside this file.</footer>"
    )
