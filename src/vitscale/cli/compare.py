"""`vitscale compare A B`: whether two studies differ, as a table and an exit code. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from vitscale.analysis.compare import Comparison
    from vitscale.analysis.summary import Difference
    from vitscale.results.record import Record


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A study's folder, or its records.jsonl: the reference.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The study that is judged.")],
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Compare although data, precision, hardware or software differ.")
    ] = False,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower",
            metavar="LIMIT",
            help="Exit code 1 if a case of B is slower than A, by at least this much (5% or 0.05) and beyond noise; or "
            "if a case that ended ok in A is absent in B, failed, or lost runs.",
        ),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="With --fail-if-slower: cases and runs that B lacks do not fail.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs, not a table.")] = False,
) -> int:
    """Decide for each case whether B is faster or slower than A, or whether no difference is shown.

    Runs are compared, not updates, so both studies need repeats: 3 show large differences, 5 show small ones. The
    last column says which difference would have been found with 90 % power. p-values and intervals are corrected for
    the number of cases. Unequal data, precision, hardware or software are refused (exit code 2).

    Examples:

      vitscale compare runs/before runs/after
      vitscale compare runs/before runs/after --fail-if-slower 5%
      vitscale compare runs/torch-2.13 runs/torch-2.14 --allow-different
      vitscale compare runs/before/records.jsonl runs/after --json
    """
    from vitscale.analysis.compare import compare as compare_records
    from vitscale.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError
    from vitscale.results.records import read_study

    limit = None if fail_if_slower is None else _limit(fail_if_slower)
    if allow_missing and limit is None:
        raise ConfigError("--allow-missing belongs to --fail-if-slower, which is not given")
    a_records, b_records = read_study(a)[0], read_study(b)[0]
    comparison = compare_records(a_records, b_records, allow_different=allow_different, allow_missing=allow_missing)
    called = _short_names((*b_records, *a_records))
    if json:
        _print_json(comparison)
    else:
        _print(comparison, called)
    return EXIT_OK if limit is None or _holds(comparison, limit, called, quiet=json) else EXIT_CHECK_FAILED


def _short_names(records: Sequence[Record]) -> dict[str, str]:
    """Case name -> the name that the report gives it."""
    from vitscale.analysis.cases import group, summarise_case
    from vitscale.report.words import labels

    cases = [summarise_case(case) for case in group(records)]
    return labels(cases, dict.fromkeys(name for case in cases for name in case.axes))


def _limit(text: str) -> float:
    from vitscale.errors import ConfigError

    try:
        limit = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        limit = -1.0
    if not 0 < limit < 1:
        raise ConfigError(f"--fail-if-slower {text}: give a share above 0 and below 1, such as 5% or 0.05")
    return limit


def _holds(comparison: Comparison, limit: float, called: Mapping[str, str], *, quiet: bool) -> bool:
    """Whether B passes; says why not, and what the check could not have seen."""
    from vitscale.errors import CompareError
    from vitscale.report.words import clean

    judged = [row for row in comparison.differences if row.verdict != "not compared"]
    if not judged and not comparison.broken:
        raise CompareError(f"no case could be compared: {comparison.differences[0].reason}")
    slow = [row for row in judged if row.verdict == "slower" and row.ratio and row.ratio.value >= 1 + limit]
    unjudged = [row for row in comparison.differences if row.verdict == "not compared"]
    blind = [row for row in judged if row.smallest_seen is not None and row.smallest_seen > limit]
    if judged and len(blind) == len(judged) and not slow and not comparison.broken:
        least = min(row.smallest_seen for row in blind if row.smallest_seen is not None)
        other = f", or a limit of {least:.1%} or more" if least < 1 else ""
        raise CompareError(
            f"all {len(judged)} comparisons are too noisy to find a slow-down of {limit:.1%} with 90 % power, and a "
            f"check that cannot fail does not pass; give more repeats{other}"
        )
    lines = [f"slower by {limit:.1%} or more: {called.get(row.case, row.case)}" for row in slow]
    lines += [f"broken: {called.get(name, name)}: {why}" for name, why in comparison.broken]
    if blind:
        lines.append(
            f"too noisy to find a slow-down of {limit:.1%} with 90 % power: {len(blind)} of {len(judged)} comparisons; "
            "more repeats see more"
        )
    if unjudged:
        lines.append(f"not compared, so not checked: {len(unjudged)} of {len(comparison.differences)} comparisons")
    for line in lines:
        typer.echo(clean(line), err=quiet)
    return not slow and not comparison.broken


def _print(comparison: Comparison, called: Mapping[str, str]) -> None:
    from rich.console import Console

    from vitscale.analysis.phrases import some
    from vitscale.report.words import clean

    console = Console(highlight=False, markup=False)
    console.print(_table(comparison, called))
    reasons: dict[str, list[str]] = {}
    for row in comparison.differences:
        if row.reason:
            reasons.setdefault(row.reason, []).append(called.get(row.case, row.case))
    for reason, cases in reasons.items():
        console.print(clean(f"not compared: {some(cases)}: {reason}"))
    for note in comparison.notes:
        console.print(clean(f"note: {note}"))


def _table(comparison: Comparison, called: Mapping[str, str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table
    from rich.text import Text

    from vitscale.report.words import clean

    table = Table(
        Column("case", overflow="fold", min_width=16),
        Column("B's time by A's", justify="right", no_wrap=True),
        Column("p", justify="right", no_wrap=True),
        Column("verdict"),
        Column("would\nhave seen", justify="right", no_wrap=True),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    colours = {"slower": "red", "faster": "green"}
    for row in comparison.differences:
        table.add_row(
            Text(clean(called.get(row.case, row.case))),
            _ratio(row),
            _p_value(row.p_value),
            Text(row.verdict, style=colours.get(row.verdict, "")),
            "" if row.smallest_seen is None else f"{row.smallest_seen:.1%}",
        )
    return table


def _p_value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2g}" if value >= 0.001 else "<0.001"


def _ratio(row: Difference) -> str:
    if row.ratio is None:
        return ""
    value, low, high = row.ratio
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f}–{high:.3f})"


def _print_json(comparison: Comparison) -> None:
    import json
    from dataclasses import asdict

    rows = [{**asdict(row), "ratio": row.ratio._asdict() if row.ratio else None} for row in comparison.differences]
    broken = [found._asdict() for found in comparison.broken]
    typer.echo(json.dumps({"differences": rows, "broken": broken, "notes": comparison.notes}, indent=2))
