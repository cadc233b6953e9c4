"""Rows of horizontal bars, one per case: their frame, order and labels. What they measure is the caller's business."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from vitscale.analysis.summary import CaseSummary
from vitscale.report import words
from vitscale.report.figure import Trace, axis, engine_colour, layout, text, tidy, wrapped

MOST_ROWS = 40


def speed(case: CaseSummary) -> float:
    """Images/s, 0 where there is none."""
    return case.images_per_s.value if case.images_per_s else 0.0


def in_order(cases: list[CaseSummary]) -> list[CaseSummary]:
    """Most devices first, then the fastest; of many the fastest alone."""
    kept = {case.name for case in sorted(cases, key=speed, reverse=True)[:MOST_ROWS]}
    ranked = sorted(cases, key=lambda case: (-case.identity.world_size, -speed(case)))
    return [case for case in ranked if case.name in kept]


def row_labels(cases: list[CaseSummary], names: dict[str, str]) -> list[str]:
    """The cases' names as the axis shows them."""
    return [wrapped(names[case.name]) for case in cases]


def frame(labels: list[str], title: str, largest: float, **more: Any) -> dict[str, Any]:
    """A layout with one row per label, the first at the top, and room for figures at the right.

    largest: the longest bar; ticks of long ones are written short, 20k, since panels can be narrow.
    """
    short = {"tickformat": "~s"} if largest >= 10_000 else {}
    ticks = {"tickmode": "linear", "dtick": 1, "nticks": 0, "ticks": ""}
    rows = {"range": [len(labels) - 0.5, -0.5], "categoryorder": "array", "categoryarray": labels}
    lines = max(label.count("<br>") + 1 for label in labels)
    height = 60 + max(26, 15 * lines + 4) * len(labels)
    y = axis("", type="category", showgrid=False, **ticks, **rows)
    made = layout(height, axis(title, rangemode="tozero", nticks=4, **short), y, bargap=0.3, **more)
    return {**made, "margin": {"l": 8, "r": 60, "t": 6, "b": 44}}


def by_engine(cases: list[CaseSummary], labels: list[str], values: list[float], hover: list[str]) -> list[Trace]:
    """One trace per engine, so that the legend can hide it."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[words.engine(case.identity, compiled=False)].append(index)
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": text(group or "all"),
            "legendgroup": group,
            "y": [labels[i] for i in rows],
            "x": [tidy(values[i]) for i in rows],
            "customdata": [f"{labels[i]}<br>{hover[i]}" for i in rows],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"color": engine_colour(cases[rows[0]].identity)},
        }
        for group, rows in groups.items()
    ]


def figures_at_ends(bars: list[Trace], ends: dict[str, float], told: dict[str, str]) -> list[Trace]:
    """Figures beyond the bars and their intervals; traces of their own, since plotly sets them onto the intervals."""
    return [
        {
            "type": "scatter",
            "mode": "text",
            "y": bar["y"],
            "x": [tidy(ends[label]) for label in bar["y"]],
            "text": [f"\u2009{told[label]}" for label in bar["y"]],
            "textposition": "middle right",
            "textfont": {"size": 11.5},
            "cliponaxis": False,
            "legendgroup": bar["legendgroup"],
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for bar in bars
    ]
