"""Lint: every unfair comparison and every doubt in a study, in words. docs/lint.md explains each rule.

In: cases and series. Out: Findings, the worst first. A rule speaks once per study or once per series, names the cases
and says what follows; it never repairs a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vitscale.analysis import lint_learning, lint_runs, lint_series, lint_setup
from vitscale.analysis.cases import Case
from vitscale.analysis.scaling import Line
from vitscale.analysis.study import Study
from vitscale.analysis.summary import Finding, ScalingSeries

Rule = Callable[[Study], Iterator[Finding]]
RULES: tuple[Rule, ...] = (*lint_series.RULES, *lint_setup.RULES, *lint_learning.RULES, *lint_runs.RULES)
_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint(cases: Sequence[Case], lines: Sequence[Line], series: Sequence[ScalingSeries]) -> tuple[Finding, ...]:
    """Find unfair comparisons and doubts."""
    study = Study(tuple(cases), tuple(lines), tuple(series))
    found = [finding for rule in RULES for finding in rule(study)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))
