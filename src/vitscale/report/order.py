"""The order in which a report lists cases: a study runs them shuffled, people read them sorted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitscale.analysis.summary import CaseSummary, Summary
from vitscale.report import words
from vitscale.results.record import Scalar


def in_reading_order(summary: Summary) -> Summary:
    """The same study with cases and series by engine, then by the axes, the number of devices last."""
    cases = sorted(summary.cases, key=lambda case: _key(case, summary.axes))
    place = {case.name: index for index, case in enumerate(cases)}
    series = sorted(summary.series, key=lambda one: place[one.baseline])
    return replace(summary, cases=tuple(cases), series=tuple(series))


def _key(case: CaseSummary, axes: tuple[str, ...]) -> tuple[Any, ...]:
    i = case.identity
    varied = tuple(_value(case.axes.get(name)) for name in axes if name.rpartition(".")[2] not in words.SAID_ELSEWHERE)
    return (*words.engine_order(i), bool(i.compile), bool(i.cuda_graph), varied, i.world_size, case.name)


def _value(value: Scalar) -> tuple[int, float, str]:
    """Numbers by size, then text by letters."""
    if value is None or isinstance(value, str):
        return (1, 0.0, value or "")
    return (0, float(value), "")
