"""Figures of single cases: throughput and memory as bars, and both against the batch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from vitscale.analysis.summary import CaseSummary, Summary
from vitscale.report import words
from vitscale.report.bars import MOST_ROWS, by_engine, figures_at_ends, frame, in_order, row_labels, speed
from vitscale.report.figure import (
    GREY,
    Figure,
    Key,
    Panel,
    Style,
    Trace,
    Values,
    axis,
    axis_of_counts,
    engine_colour,
    keys_of,
    layout,
    points,
    styles,
    text,
    whiskers,
    with_end_labels,
)

_HEIGHT = 320
_SHOWN = 8
_STEMS = {"micro_batch_size": "batch", "grad_accum_steps": "accumulation", "global_batch_size": "global-batch"}


def throughput(summary: Summary) -> list[Figure]:
    """Images/s as bars: of the most devices where scaling curves show the rest, of the best batch where those do."""
    finished = [case for case in summary.cases if case.images_per_s is not None]
    title, cases = "Throughput", finished
    if finished and any(len(series.points) > 1 for series in summary.series):
        most = max(case.identity.world_size for case in finished)
        cases = [case for case in finished if case.identity.world_size == most]
        title += f" on {words.devices(cases[0].identity)}"
    if batches(summary):
        cases = _best_of_each(cases)
        title += ", each engine at its best batch"
    if len(cases) < 2:
        return []
    drawn = in_order(cases)
    names = words.labels(cases, summary.axes)
    panels = [_speed_bars(drawn, names)]
    if any(_memory(case) for case in drawn):
        panels.append(_memory_bars(drawn, names))
    keys = _engine_keys(drawn)
    rows = [(names[c.name], words.interval(c.images_per_s), words.gib(_memory(c))) for c in cases]
    values = Values("Values", ("case", "images/s", "peak memory, GiB"), tuple(rows))
    caption = _bars_caption(cases)
    shown = keys if len(keys) > 1 else ()
    return [Figure("throughput", title, caption, tuple(panels), shown, (values,))]


def _best_of_each(cases: list[CaseSummary]) -> list[CaseSummary]:
    """The fastest case of each engine (compiled or not), precision and number of devices."""
    best: dict[tuple[Any, ...], CaseSummary] = {}
    for case in cases:
        i = case.identity
        key = (words.engine(i), i.precision, i.world_size, i.model, i.img_size, i.data_source, i.device_names[:1])
        if key not in best or speed(case) > speed(best[key]):
            best[key] = case
    return list(best.values())


def batches(summary: Summary) -> list[Figure]:
    """Throughput and memory against micro_batch_size, grad_accum_steps or global_batch_size, whichever is varied."""
    made = []
    for name in words.batch_axes(summary):
        if lines := _lines(summary, name):
            made.append(_batch_figure(name, lines, summary))
    return made


def _memory(case: CaseSummary) -> int | None:
    return case.peak_allocated_bytes or case.peak_rss_bytes


def _memory_title(cases: list[CaseSummary]) -> str:
    device = any(case.peak_allocated_bytes for case in cases)
    return "Peak device memory" if device else "Peak host memory of a process"


def _engine_keys(cases: list[CaseSummary]) -> tuple[Key, ...]:
    ordered = sorted(cases, key=lambda case: words.engine_order(case.identity))
    found = {words.engine(case.identity, compiled=False): engine_colour(case.identity) for case in ordered}
    return tuple(Key(name, name, Style(colour), area=True) for name, colour in found.items() if name)


# --- bars ---------------------------------------------------------------------------------------------------------


def _bars_caption(cases: list[CaseSummary]) -> str:
    told = "All devices together."
    if any(case.images_per_s and case.images_per_s.low is not None for case in cases):
        told += " Thin lines at the bars' ends are 95 % intervals."
    if len(cases) > MOST_ROWS:
        told += f" The {MOST_ROWS} fastest of {len(cases)} cases; the rest is in the table."
    return told


def _speed_bars(cases: list[CaseSummary], names: dict[str, str]) -> Panel:
    labels = row_labels(cases, names)
    values = {label: case.images_per_s for label, case in zip(labels, cases, strict=True)}
    hover = [f"{words.interval(case.images_per_s)} images/s" for case in cases]
    bars = by_engine(cases, labels, [speed(case) for case in cases], hover)
    for bar in bars:
        bar["error_x"] = whiskers([values[label] for label in bar["y"]], GREY) or {"visible": False}
    ends = {label: value.high or value.value for label, value in values.items() if value}
    told = {label: words.whole(value.value) for label, value in values.items() if value}
    best = max(cases, key=speed)
    description = f"Images per second of {len(cases)} cases, highest {words.whole(speed(best))} for {names[best.name]}"
    traces = [*bars, *figures_at_ends(bars, ends, told)]
    return Panel("throughput-images", "Images per second", description, traces, frame(labels, "images/s", speed(best)))


def _memory_bars(cases: list[CaseSummary], names: dict[str, str]) -> Panel:
    labels = row_labels(cases, names)
    sizes = [(_memory(case) or 0) / 2**30 for case in cases]
    told = [words.gib(_memory(case)) for case in cases]
    bars = by_engine(cases, labels, sizes, [f"{size} GiB" for size in told])
    ends = figures_at_ends(bars, dict(zip(labels, sizes, strict=True)), dict(zip(labels, told, strict=True)))
    most = max(cases, key=lambda case: _memory(case) or 0)
    title = _memory_title(cases)
    description = f"{title} of {len(cases)} cases, most {words.gib(_memory(most))} GiB for {names[most.name]}"
    return Panel("throughput-memory", title, description, [*bars, *ends], frame(labels, f"{title}, GiB", max(sizes)))


# --- against the batch --------------------------------------------------------------------------------------------


def _lines(summary: Summary, name: str) -> dict[str, list[CaseSummary]]:
    """Cases that differ in nothing but this axis, by label; those without a measurement included, single ones not."""
    rest = [axis_name for axis_name in summary.axes if axis_name.rpartition(".")[2] != name]
    several = len({case.identity.world_size for case in summary.cases}) > 1
    engines = words.several_engines(case.identity for case in summary.cases)
    lines: dict[str, list[CaseSummary]] = defaultdict(list)
    for case in sorted(summary.cases, key=lambda case: -case.identity.world_size):
        if getattr(case.identity, name) is not None:
            parts = [words.series(case.axes, case.identity, rest, engines)]
            parts += [words.devices(case.identity)] if several else []
            lines[", ".join(part for part in parts if part) or "all cases"].append(case)
    return {
        label: sorted(found, key=lambda c: getattr(c.identity, name))
        for label, found in lines.items()
        if len({getattr(c.identity, name) for c in found}) > 1
    }


def _batch_figure(name: str, lines: dict[str, list[CaseSummary]], summary: Summary) -> Figure:
    looks = styles([(label, cases[0].identity, cases[0].axes) for label, cases in lines.items()], summary.axes)
    keys = keys_of(looks, _SHOWN)
    stem = _STEMS[name]
    panels = [_batch_speed(stem, name, lines, keys)]
    if any(_memory(case) for cases in lines.values() for case in cases):
        panels.append(_batch_memory(stem, name, lines, keys))
    caption = "Throughput is of all devices together, memory of the fullest one."
    if any("oom" in case.outcomes and not case.repeats for cases in lines.values() for case in cases):
        caption += " A cross marks a case that ran out of memory."
    if len(lines) > _SHOWN:
        caption += f" {_SHOWN} of {len(lines)} series are drawn; the legend shows the others."
    rows = [
        (label, str(getattr(c.identity, name)), words.interval(c.images_per_s), words.gib(_memory(c)))
        for label, cases in lines.items()
        for c in cases
    ]
    values = Values("Values", ("series", name, "images/s", "peak memory, GiB"), tuple(rows))
    return Figure(stem, f"Against {name}", caption, tuple(panels), tuple(keys.values()), (values,))


def _batch_axis(name: str, lines: dict[str, list[CaseSummary]]) -> dict[str, Any]:
    return axis_of_counts(name, {getattr(c.identity, name) for cases in lines.values() for c in cases})


def _batch_speed(stem: str, name: str, lines: dict[str, list[CaseSummary]], keys: dict[str, Key]) -> Panel:
    curves = []
    for label, cases in lines.items():
        ran = [case for case in cases if case.images_per_s is not None]
        values = [case.images_per_s for case in ran]
        hover = [
            f"{text(label)}<br>{name} {getattr(c.identity, name)}: {words.interval(c.images_per_s)} images/s"
            for c in ran
        ]
        bars = whiskers(values, keys[label].style.colour) or {"visible": False}
        x = [getattr(case.identity, name) for case in ran]
        curves.append((keys[label], points(keys[label], x, [speed(c) for c in ran], hover, error_y=bars)))
    frame = layout(_HEIGHT, _batch_axis(name, lines), axis("images/s, all devices", rangemode="tozero"))
    best = max((case for cases in lines.values() for case in cases), key=speed)
    value = getattr(best.identity, name)
    description = f"Images per second against {name}, highest {words.whole(speed(best))} at {value}"
    traces, frame = with_end_labels(curves, frame)
    return Panel(f"{stem}-throughput", "Throughput", description, traces, frame)


def _batch_memory(stem: str, name: str, lines: dict[str, list[CaseSummary]], keys: dict[str, Key]) -> Panel:
    curves, crosses = [], []
    everything = [case for cases in lines.values() for case in cases]
    top = max((_memory(case) or 0) for case in everything) / 2**30
    for label, cases in lines.items():
        known = [case for case in cases if _memory(case)]
        x = [getattr(case.identity, name) for case in known]
        sizes = [words.gib(_memory(case)) for case in known]
        hover = [f"{text(label)}<br>{name} {value}: {size} GiB" for value, size in zip(x, sizes, strict=True)]
        curves.append((keys[label], points(keys[label], x, [(_memory(c) or 0) / 2**30 for c in known], hover)))
        lost = [case for case in cases if not case.repeats and case.outcomes.get("oom")]
        if lost:
            crosses.append(_crosses(keys[label], name, lost, 1.06 * top))
    title = _memory_title(everything)
    frame = layout(_HEIGHT, _batch_axis(name, lines), axis(f"{title}, GiB", rangemode="tozero"))
    most = max(everything, key=lambda case: _memory(case) or 0)
    description = f"{title} against {name}, most {words.gib(_memory(most))} GiB at {getattr(most.identity, name)}"
    traces, frame = with_end_labels(curves, frame)
    return Panel(f"{stem}-memory", title, description, [*traces, *crosses], frame)


def _crosses(key: Key, name: str, lost: list[CaseSummary], height: float) -> Trace:
    x = [getattr(case.identity, name) for case in lost]
    hover = [f"{text(key.label)}<br>{name} {value}: out of memory" for value in x]
    marker = {"color": key.style.colour, "symbol": "x", "size": 9}
    return points(key, x, [height] * len(x), hover, mode="markers", marker=marker, showlegend=False)
