"""What the rules of the lint look at: a study's cases and series, and short ways to ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitscale.analysis.cases import Case
from vitscale.analysis.scaling import Line
from vitscale.analysis.summary import ScalingSeries
from vitscale.results.record import Record


@dataclass(frozen=True)
class Study:
    """Cases, lines (which cases make a series) and series (what was computed of them)."""

    cases: tuple[Case, ...]
    lines: tuple[Line, ...]
    series: tuple[ScalingSeries, ...]

    @property
    def measured(self) -> tuple[Case, ...]:
        """Cases of which at least one run ended ok."""
        return tuple(case for case in self.cases if case.ok)

    @property
    def learned(self) -> tuple[Case, ...]:
        """Cases with an accuracy."""
        return tuple(case for case in self.measured if accuracies(case))

    def records(self) -> Iterator[Record]:
        """All records that ended ok."""
        return (record for case in self.cases for record in case.ok)


def accuracies(case: Case) -> tuple[float, ...]:
    """Final accuracy, one per run that has one."""
    finals = (record.learning.final_accuracy for record in case.ok if record.learning)
    return tuple(final for final in finals if final is not None)


def names(cases: tuple[Case, ...] | list[Case]) -> tuple[str, ...]:
    """The cases' names."""
    return tuple(case.name for case in cases)
