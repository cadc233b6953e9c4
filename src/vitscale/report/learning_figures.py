"""Figures of accuracy: against training time, updates and images where there are curves, else against devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from vitscale.analysis.summary import CaseSummary, Interval, Summary
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
    points,
    styles,
    text,
    whiskers,
)

_HEIGHT = 320
_SHOWN = 8
_MOST_CASES = 40
_MOST_POINTS = 200  # of a curve
_ALL_POINTS = 12_000  # of all curves of a panel: the page stays small
Curve = tuple[tuple[int, int, float, float], ...]  # (update, images, seconds, accuracy)


def learning(summary: Summary) -> list[Figure]:
    """Accuracy beside speed: one figure for each split that accuracy was measured on."""
    made = []
    splits = sorted({case.accuracy_split or "" for case in summary.cases if case.accuracy or case.curves})
    for index, split in enumerate(splits):
        cases = [c for c in summary.cases if (c.accuracy or c.curves) and (c.accuracy_split or "") == split]
        stem = "accuracy" if index == 0 else f"accuracy-{index + 1}"
        if any(len(curve) > 1 for case in cases for curve in case.curves):
            made.append(_curves_figure(stem, split, cases, summary))
        elif len({case.identity.world_size for case in cases}) > 1:
            made.append(_end_figure(stem, split, cases, summary))
    return made


def _title(split: str) -> str:
    return words.SPLITS.get(split, "accuracy").capitalize()


# --- curves -------------------------------------------------------------------------------------------------------


def _curves_figure(stem: str, split: str, cases: list[CaseSummary], summary: Summary) -> Figure:
    names = words.labels(cases, summary.axes)
    drawn = sorted((case for case in cases if case.curves), key=lambda case: -case.identity.world_size)[:_MOST_CASES]
    looks = styles([(names[case.name], case.identity, case.axes) for case in drawn], summary.axes)
    most = max(case.identity.world_size for case in drawn)
    keys = keys_of(looks, _SHOWN, [names[case.name] for case in drawn if case.identity.world_size == most])
    target = next((case.target for case in cases if case.target is not None), None)
    by: tuple[tuple[str, str, Callable[[tuple[int, int, float, float]], float]], ...] = (
        ("time", "training time, s", lambda p: p[2]),
        ("updates", "updates", lambda p: p[0]),
        ("images", "images seen", lambda p: p[1]),
    )
    panels = [_panel(stem, split, name, title, get, drawn, names, keys, target) for name, title, get in by]
    caption = "A line per repeat. An engine that is faster but needs more updates or images gains less than its speed."
    if target is not None:
        caption += f" Dashed: the target, {words.accuracy(target)}."
    if len(drawn) > _SHOWN:
        shown = sum(key.shown for key in keys.values())
        caption += f" {shown} of {len(cases)} cases are drawn; the legend shows more, Values has all."
    head = ("case", "at the end", "time to target", "updates to target", "images to target")
    values = Values("Values", head, tuple(_row(case, names) for case in cases))
    return Figure(stem, _title(split), caption, tuple(panels), tuple(keys.values()), (values,))


def _row(case: CaseSummary, names: dict[str, str]) -> tuple[str, ...]:
    return (
        names[case.name],
        words.interval(case.accuracy, words.accuracy),
        words.interval(case.seconds_to_target, words.duration),
        words.interval(case.updates_to_target, words.whole),
        words.interval(case.images_to_target, words.whole),
    )


def _panel(
    stem: str,
    split: str,
    name: str,
    title: str,
    get: Callable[[tuple[int, int, float, float]], float],
    cases: list[CaseSummary],
    names: dict[str, str],
    keys: dict[str, Key],
    target: float | None,
) -> Panel:
    traces: list[Trace] = []
    most = min(_MOST_POINTS, max(10, _ALL_POINTS // sum(len(case.curves) for case in cases)))
    for case in cases:
        for repeat, curve in enumerate(case.curves):
            traces.append(_curve(keys[names[case.name]], _thinned(curve, most), get, title, repeat))
    furthest = max((get(p) for case in cases for curve in case.curves for p in curve), default=1)
    if target is not None:
        traces.append(_target(furthest, target))
    short = {"tickformat": "~s"} if furthest >= 10_000 else {}
    x, y = axis(title, rangemode="tozero", nticks=6, **short), axis(f"{_title(split).lower()}, %")
    ends = [f"{names[c.name]} {words.interval(c.accuracy, words.accuracy)}" for c in cases[:8]]
    description = f"{_title(split)} against {title}. At the end: {'; '.join(ends)}"
    return Panel(f"{stem}-{name}", f"Against {title.partition(',')[0]}", description, traces, layout(_HEIGHT, x, y))


def _thinned(curve: Curve, most: int) -> Curve:
    step = -(-len(curve) // most)
    return curve if step <= 1 else (*curve[:-1:step], curve[-1])


def _curve(
    key: Key, curve: Curve, get: Callable[[tuple[int, int, float, float]], float], title: str, repeat: int
) -> Trace:
    marker = {"color": key.style.colour, "symbol": key.style.symbol, "size": 5}
    line = {"color": key.style.colour, "dash": key.style.dash, "width": 1.5}
    told = f"{text(key.label)}, repeat {repeat + 1}<br>%{{y:.1f}} % at %{{x:,.4~r}} ({title})<extra></extra>"
    more = {"marker": marker, "line": line, "showlegend": repeat == 0, "hovertemplate": told}
    return points(key, [get(p) for p in curve], [round(100 * p[3], 2) for p in curve], (), **more)


def _target(furthest: float, target: float) -> Trace:
    line = {"color": GREY, "width": 1, "dash": "dash"}
    ends = {"x": [0, furthest], "y": [100 * target, 100 * target]}
    return {"type": "scatter", "mode": "lines", "name": "target", "hoverinfo": "skip", "line": line, **ends}


# --- the end alone ------------------------------------------------------------------------------------------------


def _end_figure(stem: str, split: str, cases: list[CaseSummary], summary: Summary) -> Figure:
    """Accuracy at the end, and the time of an epoch, against the number of devices."""
    lines: dict[str, list[CaseSummary]] = defaultdict(list)
    engines = words.several_engines(case.identity for case in cases)
    for case in cases:
        lines[words.series(case.axes, case.identity, summary.axes, engines) or "all cases"].append(case)
    by_length = sorted(lines.items(), key=lambda item: -len(item[1]))
    lines = {label: sorted(line, key=lambda c: c.identity.world_size) for label, line in by_length}
    looks = styles([(label, line[0].identity, line[0].axes) for label, line in lines.items()], summary.axes)
    keys = keys_of(looks, _SHOWN)
    device = words.devices(cases[0].identity, 2).partition(" ")[2]
    panels = [_end_panel(stem, split, lines, keys, device)]
    if any(case.epoch_time_s for case in cases):
        panels.append(_epoch_panel(stem, lines, keys, device))
    caption = "A shorter epoch is a gain only where accuracy stands."
    if len(lines) > _SHOWN:
        caption += f" {_SHOWN} of {len(lines)} series are drawn; the legend shows the others."
    rows = tuple(
        (label, str(c.identity.world_size), words.interval(c.accuracy, words.accuracy), words.duration(c.epoch_time_s))
        for label, line in lines.items()
        for c in line
    )
    values = Values("Values", ("series", device, "accuracy at the end", "epoch"), rows)
    return Figure(stem, f"{_title(split)} at the end", caption, tuple(panels), tuple(keys.values()), (values,))


def _end_panel(stem: str, split: str, lines: dict[str, list[CaseSummary]], keys: dict[str, Key], device: str) -> Panel:
    traces = []
    for label, line in lines.items():
        known = [case for case in line if case.accuracy is not None]
        values = [100 * case.accuracy.value for case in known if case.accuracy]
        hover = [
            f"{text(label)}<br>{words.devices(c.identity)}: {words.interval(c.accuracy, words.accuracy)}" for c in known
        ]
        scaled = [_hundredfold(c.accuracy) for c in known if c.accuracy]
        bars = whiskers(scaled, keys[label].style.colour) or {"visible": False}
        traces.append(points(keys[label], [c.identity.world_size for c in known], values, hover, error_y=bars))
    counts = {case.identity.world_size for line in lines.values() for case in line}
    frame = layout(_HEIGHT, axis_of_counts(device, counts), axis(f"{_title(split).lower()}, %"))
    ends = [f"{label} {words.interval(line[-1].accuracy, words.accuracy)}" for label, line in list(lines.items())[:8]]
    description = f"{_title(split)} against {device}. At the most {device}: {'; '.join(ends)}"
    return Panel(f"{stem}-end", _title(split), description, traces, frame)


def _hundredfold(value: Interval) -> Interval:
    low, high = value.low, value.high
    return Interval(100 * value.value, None if low is None else 100 * low, None if high is None else 100 * high)


def _epoch_panel(stem: str, lines: dict[str, list[CaseSummary]], keys: dict[str, Key], device: str) -> Panel:
    traces = []
    for label, line in lines.items():
        known = [case for case in line if case.epoch_time_s]
        hover = [f"{text(label)}<br>{words.devices(c.identity)}: {words.duration(c.epoch_time_s)}" for c in known]
        x = [case.identity.world_size for case in known]
        traces.append(points(keys[label], x, [case.epoch_time_s for case in known], hover))
    counts = {case.identity.world_size for line in lines.values() for case in line}
    frame = layout(_HEIGHT, axis_of_counts(device, counts), axis("seconds per epoch", rangemode="tozero"))
    return Panel(f"{stem}-epoch", "Time of an epoch", f"Seconds per epoch against {device}", traces, frame)
