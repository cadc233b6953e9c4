"""What a figure is: panels that share a legend, in plotly's own JSON, and the colours that mean the same everywhere.

In: styled values from the modules that draw (scaling_figures, case_figures, learning_figures). Out: plain dicts for
plotly.js in the page, or for kaleido. Plotly itself is not imported here. All text that enters a figure passes
`text`, since plotly reads a little HTML.
"""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitscale.analysis.summary import Interval
from vitscale.report import words
from vitscale.results.record import Identity, Scalar

Trace = dict[str, Any]

GREY, INK, GRID = "#6b7280", "#3d4450", "#e4e7eb"
_ENGINES = {"single": GREY, "ddp": "#2f6db5", "fsdp2": "#2e8b6f"}
_ZERO = ("#dd9427", "#cf6a24", "#b0452a", "#7f2f4a")
_MANY = ("#2f6db5", "#cf6a24", "#2e8b6f", "#8a5bb0", "#b0452a", "#2b8ba3", "#94842a", GREY)
_RAMP = ("#6aa5e0", "#4a8bd0", "#2f6db5", "#235490", "#1b4070", "#142e52")
PHASE_COLOURS = {
    "data_wait": "#d9a441",
    "host_to_device": "#b8933f",
    "forward": "#8fb8e3",
    "backward": "#3f7cc2",
    "step": "#3f7cc2",
    "exposed_comm": "#c8462f",
    "straggler_wait": "#7f2f4a",
    "optimizer": "#6f8aa3",
    "other": "#b4bac2",
}
DARK = {
    GREY: "#9aa3af",
    INK: "#c5cbd3",
    GRID: "#2c333b",
    "#2f6db5": "#6ea3e0",
    "#2e8b6f": "#5fbf9d",
    "#dd9427": "#f0b861",
    "#cf6a24": "#ee9150",
    "#b0452a": "#e57359",
    "#7f2f4a": "#cf6f8f",
    "#8a5bb0": "#b58fd6",
    "#2b8ba3": "#63b9cf",
    "#94842a": "#c7b65a",
    "#6aa5e0": "#35618f",
    "#4a8bd0": "#4479b3",
    "#235490": "#8fbcec",
    "#1b4070": "#b3d3f4",
    "#142e52": "#d6e8fb",
}
"""light -> dark; a colour that is not here stands on both."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = {"single": "diamond", "ddp": "circle", "fsdp2": "square", "deepspeed": "triangle-up"}
_LONGEST_LABEL = 14
_LABEL_GAP = 0.04  # of the axis: two names that are closer would touch
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


@dataclass(frozen=True)
class Style:
    """How a series looks wherever it appears."""

    colour: str
    dash: str = "solid"
    symbol: str = "circle"


@dataclass(frozen=True)
class Panel:
    """One plot. name: stem of its files. description: what a person who does not see it is told."""

    name: str
    title: str
    description: str
    data: list[Trace]
    layout: dict[str, Any]


@dataclass(frozen=True)
class Key:
    """One entry of the legend; group ties it to the traces that it shows and hides."""

    group: str
    label: str
    style: Style
    shown: bool = True
    area: bool = False


@dataclass(frozen=True)
class Values:
    """Figures as a table: the same as drawn, or what is too much to draw."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """Panels under one heading and one legend, with their values."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    legend: tuple[Key, ...]
    values: tuple[Values, ...]


def text(value: object) -> str:
    """Text as plotly may show it: no markup, nothing unprintable, nothing that a hover template would fill in."""
    return html.escape(words.clean(value), quote=False).replace("%{", "&#37;{")


def wrapped(label: str, width: int = 30) -> str:
    """A label for an axis, broken at commas where it is long."""
    lines = [""]
    for part in text(label).split(", "):
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(joined) > width and lines[-1]:
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = joined
    return "<br>".join(lines)


# --- styles -------------------------------------------------------------------------------------------------------


def engine_colour(identity: Identity) -> str:
    """The colour of an engine, the same in every report."""
    if identity.engine == "deepspeed":
        return _ZERO[min(identity.zero_stage or 0, len(_ZERO) - 1)]
    return _ENGINES.get(identity.engine or "", _ENGINES["single"])


def styles(items: Sequence[tuple[str, Identity, dict[str, Scalar]]], axes: tuple[str, ...]) -> dict[str, Style]:
    """A style for each label: colour by engine where engines differ, by the value of an axis otherwise."""
    engines = {(identity.engine, identity.zero_stage) for _, identity, _ in items}
    if len(engines) > 1:
        return _by_engine(items)
    order = list(dict.fromkeys(label for label, _, _ in items))
    ramp = len(order) <= len(_RAMP) and _one_numeric_axis([values for _, _, values in items], axes)
    if ramp is None or ramp is False or len(order) == 1:
        return {label: Style(_MANY[i % len(_MANY)], _DASHES[i // len(_MANY) % 5]) for i, label in enumerate(order)}
    value_of = {label: values[ramp] for label, _, values in items}
    ranked = sorted(order, key=lambda label: value_of[label])  # type: ignore[arg-type, return-value]
    step = (len(_RAMP) - 1) / (len(ranked) - 1)
    return {label: Style(_RAMP[round(i * step)]) for i, label in enumerate(ranked)}


def _by_engine(items: Sequence[tuple[str, Identity, dict[str, Scalar]]]) -> dict[str, Style]:
    made: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for label, identity, _ in items:
        if label not in made:
            colour = engine_colour(identity)
            made[label] = Style(colour, _DASHES[seen.get(colour, 0) % 5], _SYMBOLS.get(identity.engine or "", "circle"))
            seen[colour] = seen.get(colour, 0) + 1
    return made


def _one_numeric_axis(values: list[dict[str, Scalar]], axes: tuple[str, ...]) -> str | None:
    """The axis by which the items differ, if it is one and holds numbers."""
    differing = [name for name in axes if name != "world_size" and len({v.get(name) for v in values}) > 1]
    if len(differing) != 1:
        return None
    kinds = {type(v.get(differing[0])) for v in values}
    return differing[0] if kinds <= {int, float} else None


# --- pieces of plotly's JSON --------------------------------------------------------------------------------------


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a quiet grid."""
    quiet = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "automargin": True, "tickcolor": GRID}
    digits = {"separatethousands": True, "exponentformat": "none", "tickangle": 0, "nticks": 7}
    return {"title": {"text": text(title), "standoff": 8}, **quiet, **digits, **more}


def axis_of_counts(title: str, values: Iterable[int]) -> dict[str, Any]:
    """An axis on which each measured count has its tick: logarithmic where counts span a factor of 16."""
    marks = sorted(set(values))
    shown = marks if len(marks) <= 9 else [mark for mark in marks if mark & (mark - 1) == 0 or mark == marks[-1]]
    ticks = {"tickmode": "array", "tickvals": shown, "ticktext": [f"{mark:,}" for mark in shown]}
    return axis(title, type="log" if marks[0] > 0 and marks[-1] / marks[0] >= 16 else "linear", **ticks)


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis with its ticks at 1, 2 and 5, written in full."""
    known = [value for value in values if value > 0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    marks = [m * 10.0**power for power in range(low, high + 1) for m in (1, 2, 5)]
    ticks = {"tickmode": "array", "tickvals": marks, "ticktext": [f"{mark:,g}" for mark in marks]}
    return axis(title, type="log", **ticks)


def layout(height: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The frame that all panels share."""
    return {
        "height": height,
        "font": {"family": FONT, "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 48, "r": 16, "t": 10, "b": 44},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "showlegend": True,
        "legend": {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom"},
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def points(key: Key, x: Sequence[float], y: Sequence[float | None], hover: Sequence[str], **more: Any) -> Trace:
    """Markers joined by a line."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text(key.label),
        "legendgroup": key.group,
        "visible": True if key.shown else "legendonly",
        "x": [tidy(v) for v in x],
        "y": [tidy(v) for v in y],
        "customdata": list(hover),
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"color": key.style.colour, "dash": key.style.dash, "width": 2},
        "marker": {"color": key.style.colour, "symbol": key.style.symbol, "size": 7},
        **more,
    }


def whiskers(values: Sequence[Interval | None], colour: str) -> dict[str, Any] | None:
    """95 % intervals as error bars; None if no value has one."""
    if not any(v and v.low is not None and v.high is not None for v in values):
        return None
    up = [v.high - v.value if v and v.high is not None else 0 for v in values]
    down = [v.value - v.low if v and v.low is not None else 0 for v in values]
    arrays = {"array": [tidy(v) for v in up], "arrayminus": [tidy(v) for v in down]}
    return {"type": "data", "symmetric": False, **arrays, "color": colour, "thickness": 1.5, "width": 0}


def end_labels(curves: Iterable[tuple[Key, Trace]], log: bool = False) -> list[Trace]:
    """Names at the right end of the curves: where they are short and do not touch, and if most curves have one."""
    shown = [(key, trace) for key, trace in curves if key.shown and trace["x"]]
    ends = [(key, trace["x"][-1], trace["y"][-1]) for key, trace in shown if trace["y"][-1] is not None]
    if len(ends) < 2:
        return []
    heights = _heights([y for _, _, y in ends], [y for _, trace in shown for y in trace["y"] if y], log)
    made: list[Trace] = []
    for index, (key, x, y) in enumerate(ends):
        name = key.label.replace("DeepSpeed ZeRO", "ZeRO")
        others = (*heights[:index], *heights[index + 1 :])
        if len(name) <= _LONGEST_LABEL and all(abs(other - heights[index]) >= _LABEL_GAP for other in others):
            made.append(_end_label(key, name, x, y))
    return made if 2 * len(made) >= len(ends) else []


def _heights(values: list[float], everything: list[float], log: bool) -> list[float]:
    """Where these lie on their axis, as a share of its length."""
    if not log:
        return [value / max(everything) for value in values]
    low, high = math.log(min(everything)), math.log(max(everything))
    return [(math.log(value) - low) / ((high - low) or 1) if value > 0 else 0 for value in values]


def _end_label(key: Key, name: str, x: float, y: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x],
        "y": [y],
        "text": [f"\u2002{text(name)}"],
        "textposition": "middle right",
        "textfont": {"color": key.style.colour, "size": 11},
        "cliponaxis": False,
        "legendgroup": key.group,
        "visible": True,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def with_end_labels(keyed: list[tuple[Key, Trace]], frame: dict[str, Any]) -> tuple[list[Trace], dict[str, Any]]:
    """The curves with their names, and the frame with room for these."""
    labels = end_labels(keyed, log=frame["yaxis"].get("type") == "log")
    room = max((7 * len(label["text"][0]) for label in labels), default=0)
    margin = {**frame["margin"], "r": max(frame["margin"]["r"], 8 + room)}
    return [*(trace for _, trace in keyed), *labels], {**frame, "margin": margin}


def tidy(value: float | None) -> float | None:
    """Five significant digits are all that a plot can show."""
    if value is None or value != value or value in (float("inf"), float("-inf")):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def keys_of(named: dict[str, Style], most: int, wanted: Collection[str] = ()) -> dict[str, Key]:
    """Legend entries by label. Where there are more than `most`, only the wanted ones, or the first, start shown."""
    first = [label for label in named if label in wanted] if len(wanted) > 1 else list(named)
    shown = set(named if len(named) <= most else first[:most])
    return {label: Key(f"g{i}", label, style, label in shown) for i, (label, style) in enumerate(named.items())}
