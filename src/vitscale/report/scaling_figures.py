"""Figures of scaling: images/s, speed-up with its ideal line and fitted laws, efficiency. One figure per mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitscale.analysis.summary import Fit, Interval, ScalingPoint, ScalingSeries, Summary
from vitscale.report import words
from vitscale.report.figure import (
    GREY,
    Figure,
    Key,
    Panel,
    Trace,
    Values,
    axis,
    axis_of_counts,
    keys_of,
    layout,
    log_axis,
    points,
    styles,
    text,
    whiskers,
    with_end_labels,
)
from vitscale.results.record import Identity

HEIGHT = 320
_SHOWN = 8  # more curves than that start hidden, and have no fitted law drawn
_FIT_POINTS = 30
_LAWS = {"amdahl": "Amdahl", "gustafson": "Gustafson", "usl": "USL"}
_MODES = ("strong", "weak", "grid")
_TITLES = {
    ("strong", None): "Strong scaling",
    ("strong", "global"): "Strong scaling, global batch fixed",
    ("strong", "per_device"): "Strong scaling, batch per device fixed",
    ("weak", None): "Weak scaling, work per device fixed",
}


def scaling(summary: Summary) -> list[Figure]:
    """A figure for each mode of scaling in the study."""
    modes: dict[tuple[str, str | None], dict[str, ScalingSeries]] = {}
    for label, series in zip(words.series_labels(summary), summary.series, strict=True):
        if len(series.points) > 1:
            mode = (series.mode, None if series.mode == "weak" else series.fixed)
            modes.setdefault(mode, {})[label] = series
    ordered = sorted(modes.items(), key=lambda item: (_MODES.index(item[0][0]), item[0][1] or ""))
    return [_figure(index, mode, named, summary) for index, (mode, named) in enumerate(ordered)]


def _figure(index: int, mode: tuple[str, str | None], named: dict[str, ScalingSeries], summary: Summary) -> Figure:
    identities = {case.name: case.identity for case in summary.cases}
    named = dict(sorted(named.items(), key=lambda item: -len(item[1].points)))
    looks = styles([(label, identities[s.baseline], s.axes) for label, s in named.items()], summary.axes)
    keys = keys_of(looks, _SHOWN)
    found = list(named.values())
    device = _device_word(identities[found[0].baseline])
    stem = "scaling" if index == 0 else f"scaling-{index + 1}"
    return Figure(
        name=stem,
        title=_TITLES.get(mode, "Scaling"),
        caption=_caption(mode, len(named), found),
        panels=(
            _speedup(stem, named, keys, device),
            _efficiency(stem, named, keys, device),
            _throughput(stem, named, keys, device),
        ),
        legend=tuple(keys.values()),
        values=(_values(named, device), *_laws(named)),
    )


def _device_word(identity: Identity) -> str:
    return words.devices(identity, 2).partition(" ")[2]


def _caption(mode: tuple[str, str | None], count: int, found: list[ScalingSeries]) -> str:
    base = sorted({series.points[0].world_size for series in found})
    told = f"Relative to the smallest number of devices of each series ({', '.join(map(str, base))})."
    if mode == ("strong", "per_device"):
        told += " The global batch grows with the devices, so the training is not the same along a curve."
    if any(point.speedup.low is not None for series in found for point in series.points[1:]):
        told += " Bars are 95 % intervals; where one leaves the frame, Values has its ends."
    else:
        told += " No intervals: each case ran once, or too few times."
    if any(fit.curve for series in found for fit in series.fits):
        told += " Dotted: fitted laws."
    if count > _SHOWN:
        told += f" {_SHOWN} of {count} series are drawn; the legend shows the others."
    return told


def _values(named: dict[str, ScalingSeries], device: str) -> Values:
    rows = tuple(_row(label, point) for label, series in named.items() for point in series.points)
    return Values("Values", ("series", device, "images/s", "speed-up", "efficiency"), rows)


def _laws(named: dict[str, ScalingSeries]) -> tuple[Values, ...]:
    """The fitted laws with their parameters, or why there is none."""
    rows = tuple((label, _LAWS[fit.law], *_fit_words(fit)) for label, s in named.items() for fit in s.fits)
    return (
        (Values("Fitted laws", ("series", "law", "parameters", "highest speed-up", "peak at"), rows),) if rows else ()
    )


def _fit_words(fit: Fit) -> tuple[str, str, str]:
    if fit.refused is not None:
        return f"refused: {fit.refused}", "", ""
    told = [f"{name} {words.interval(value)}" for name, value in fit.parameters.items()]
    highest = "" if fit.max_speedup is None else words.number(fit.max_speedup)
    return ", ".join(told), highest, "" if fit.best_world_size is None else words.whole(fit.best_world_size)


def _row(label: str, point: ScalingPoint) -> tuple[str, ...]:
    return (
        label,
        str(point.world_size),
        words.interval(point.images_per_s),
        words.interval(point.speedup, lambda v: words.number(v, 3)),
        words.interval(point.efficiency, _share),
    )


def _share(value: float | None) -> str:
    return words.NONE if value is None else f"{value:.2f}"


def _curves(
    named: dict[str, ScalingSeries],
    keys: dict[str, Key],
    device: str,
    value: Callable[[ScalingPoint], Interval],
    told: Callable[[Interval], str],
) -> list[tuple[Key, Trace]]:
    made = []
    for label, series in named.items():
        values = [value(point) for point in series.points]
        hover = [f"{text(label)}<br>{p.world_size} {device}: {told(value(p))}" for p in series.points]
        x = [point.world_size for point in series.points]
        bars = whiskers(values, keys[label].style.colour)
        curve = points(keys[label], x, [v.value for v in values], hover, error_y=bars or {"visible": False})
        made.append((keys[label], curve))
    return made


def _efficiencies(named: dict[str, ScalingSeries]) -> list[Interval]:
    return [point.efficiency for series in named.values() for point in series.points]


def _from_zero(title: str, values: list[Interval], least: float, kind: str = "linear") -> dict[str, Any]:
    """An axis that no single wide interval may stretch: few repeats give ones of many times the value."""
    if kind == "log":
        return log_axis(title, [value.value for value in values])
    top = max([least, *(value.value for value in values)])
    highest = max(min(value.high or value.value, 1.5 * top) for value in values)
    return axis(title, range=[0, 1.06 * max(top, highest)])


def _counts(named: dict[str, ScalingSeries]) -> list[int]:
    return sorted({point.world_size for series in named.values() for point in series.points})


def _ideal(x: list[float], y: list[float]) -> Trace:
    line = {"color": GREY, "width": 1, "dash": "dash"}
    return {
        "type": "scatter",
        "mode": "lines+text",
        "text": ["", "ideal"],
        "textposition": "top left",
        "textfont": {"color": GREY, "size": 11},
        "cliponaxis": False,
        "name": "ideal",
        "x": x,
        "y": y,
        "line": line,
        "hoverinfo": "skip",
        "showlegend": True,
    }


def _speedup(stem: str, named: dict[str, ScalingSeries], keys: dict[str, Key], device: str) -> Panel:
    counts = _counts(named)
    base = min(series.points[0].world_size for series in named.values())
    ends: list[float] = [base, counts[-1]]
    curves = _curves(named, keys, device, lambda p: p.speedup, lambda v: f"{words.interval(v)} times")
    fits = [_fit(fit, keys[label]) for label, s in named.items() for fit in s.fits if fit.curve and keys[label].shown]
    x = axis_of_counts(device, counts)
    y = _from_zero("speed-up", [p.speedup for s in named.values() for p in s.points], ends[1] / base, x["type"])
    last = {label: series.points[-1].speedup.value for label, series in named.items()}
    description = "Speed-up at the most devices: " + _listed(last, lambda v: f"{words.number(v)} times")
    traces, frame = with_end_labels(curves, layout(HEIGHT, x, y))
    ideal = _ideal(ends, [1, counts[-1] / base])
    return Panel(f"{stem}-speedup", "Speed-up", description, [ideal, *fits, *traces], frame)


def _fit(fit: Fit, key: Key) -> Trace:
    line = {"color": key.style.colour, "width": 1, "dash": "dot"}
    told = f"{text(key.label)}, {_LAWS[fit.law]} fitted<br>%{{y:.3g}} times<extra></extra>"
    more: dict[str, Any] = {"mode": "lines", "line": line, "showlegend": False, "hovertemplate": told}
    step = -(-len(fit.curve) // _FIT_POINTS)
    curve = [*fit.curve[::step], fit.curve[-1]]
    return points(key, [x for x, _ in curve], [y for _, y in curve], (), **more)


def _efficiency(stem: str, named: dict[str, ScalingSeries], keys: dict[str, Key], device: str) -> Panel:
    counts = _counts(named)
    curves = _curves(named, keys, device, lambda p: p.efficiency, lambda v: words.interval(v, _share))
    x, y = axis_of_counts(device, counts), _from_zero("scaling_efficiency", _efficiencies(named), 1)
    last = {label: series.points[-1].efficiency.value for label, series in named.items()}
    description = "Scaling efficiency at the most devices: " + _listed(last, _share)
    traces, frame = with_end_labels(curves, layout(HEIGHT, x, y))
    ideal = _ideal([counts[0], counts[-1]], [1, 1])
    return Panel(f"{stem}-efficiency", "Efficiency", description, [ideal, *traces], frame)


def _throughput(stem: str, named: dict[str, ScalingSeries], keys: dict[str, Key], device: str) -> Panel:
    curves = _curves(named, keys, device, lambda p: p.images_per_s, lambda v: f"{words.interval(v)} images/s")
    x = axis_of_counts(device, _counts(named))
    y = _from_zero("images/s, all devices", [p.images_per_s for s in named.values() for p in s.points], 0, x["type"])
    last = {label: series.points[-1].images_per_s.value for label, series in named.items()}
    description = "Images per second at the most devices: " + _listed(last, words.whole)
    traces, frame = with_end_labels(curves, layout(HEIGHT, x, y))
    return Panel(f"{stem}-throughput", "Throughput", description, traces, frame)


def _listed(values: dict[str, float], told: Callable[[float], str]) -> str:
    return "; ".join(f"{label} {told(value)}" for label, value in list(values.items())[:12])
