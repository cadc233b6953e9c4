"""The figures' section of the page: headings, legends as buttons, one place per plot, the same figures as tables."""

from __future__ import annotations

from typing import Any

from vitscale.analysis.summary import Summary
from vitscale.report import words
from vitscale.report.figure import DARK, Figure, Key, Panel, Values, axis, layout
from vitscale.report.page_parts import escape

_STEPS_HEIGHT = 260
_ALL_STEPS = 60_000  # points of all cases: the page stays small
_DASH = {"solid": "", "dash": "5 3", "dot": "1.5 3", "dashdot": "5 3 1.5 3", "longdash": "8 3"}
_SHAPES = {
    "circle": '<circle cx="13" cy="6" r="3.4"/>',
    "square": '<rect x="9.8" y="2.8" width="6.4" height="6.4"/>',
    "diamond": '<path d="M13 1.6 17.2 6 13 10.4 8.8 6Z"/>',
    "triangle-up": '<path d="M13 1.8 17 9 9 9Z"/>',
}


def section(summary: Summary, made: list[Figure]) -> str:
    """All figures; nothing if there is none to show."""
    body = "".join(_figure(figure) for figure in made) + _steps_block(summary)
    if not body:
        return ""
    missing = '<noscript><p class="notice">The figures need JavaScript; their values are in the tables.</p></noscript>'
    return f'<section id="figures"><h2>Figures</h2>{missing}{body}</section>'


def _figure(figure: Figure) -> str:
    panels = "".join(_panel(panel, figure) for panel in figure.panels)
    values = "".join(_values(table, figure.title) for table in figure.values)
    one = " one" if len(figure.panels) == 1 else ""
    return (
        f'<figure id="figure-{figure.name}" aria-labelledby="title-{figure.name}">'
        f'<h3 id="title-{figure.name}">{escape(figure.title)}</h3>'
        f'<figcaption class="caption">{escape(figure.caption)}</figcaption>'
        f'{_legend(figure)}<div class="panels{one}">{panels}</div>{values}</figure>'
    )


def _panel(panel: Panel, figure: Figure) -> str:
    saves = "".join(_save(kind, panel.title) for kind in ("SVG", "PNG"))
    name = escape(f"{figure.title}: {panel.description}")
    return (
        f'<div class="panel"><h4>{escape(panel.title)}<span class="save">{saves}</span></h4>'
        f'<div class="plot" data-panel="{panel.name}" role="img" aria-label="{name}" tabindex="0" '
        f'style="height:{panel.layout["height"]}px"></div></div>'
    )


def _save(kind: str, title: str) -> str:
    name = f"Save {escape(title)} as {kind}"
    return f'<button type="button" data-save="{kind.lower()}" aria-label="{name}">{kind}</button>'


def _legend(figure: Figure) -> str:
    """Buttons that show and hide; those that start hidden are folded away."""
    if len(figure.legend) < 2:
        return ""
    shown = "".join(f"<li>{_key(key)}</li>" for key in figure.legend if key.shown)
    folded = "".join(f"<li>{_key(key)}</li>" for key in figure.legend if not key.shown)
    made = f'<ul class="legend" aria-label="Legend: shows and hides">{shown}</ul>'
    if folded:
        count = sum(not key.shown for key in figure.legend)
        made += f'<details class="more-keys"><summary>{count} more</summary><ul class="legend">{folded}</ul></details>'
    return made


def _key(key: Key) -> str:
    colour = key.style.colour
    if key.area:
        shape = '<svg width="14" height="12" aria-hidden="true"><rect y="1" width="12" height="10" rx="2"/></svg>'
    else:
        dash = _DASH[key.style.dash]
        line = f'<path d="M0 6H26" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="{dash}"/>'
        shape = f'<svg width="26" height="12" aria-hidden="true">{line}{_SHAPES[key.style.symbol]}</svg>'
    both = f"color:light-dark({colour},{DARK.get(colour, colour)})"
    shape = shape.replace("<svg ", f'<svg style="{both}" fill="currentColor" ')
    pressed = "true" if key.shown else "false"
    label = f"{shape}{escape(key.label)}"
    return (
        f'<button type="button" class="key" data-group="{escape(key.group)}" aria-pressed="{pressed}">{label}</button>'
    )


def _values(table: Values, figure: str) -> str:
    """Figures as a table, for those who cannot see them and those who want the digits."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<details><summary>{escape(table.title)}</summary><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{escape(table.title)} of {escape(figure)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


# --- every update of one case --------------------------------------------------------------------------------------


def _steps_block(summary: Summary) -> str:
    made, _ = steps(summary)
    if not made:
        return ""
    options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, (name, _, _) in enumerate(made))
    return (
        '<figure id="figure-steps" class="screen" aria-labelledby="title-steps">'
        '<h3 id="title-steps">Every update of a case</h3>'
        '<figcaption class="caption">Step time of each counted update, at most 200 points for each repeat: '
        "drift, spikes and unlike repeats show here.</figcaption>"
        f'<div class="explore"><label>Case <select id="steps-case">{options}</select></label></div>'
        f'<div class="plot" id="steps" role="img" tabindex="0" style="height:{_STEPS_HEIGHT}px"></div></figure>'
    )


def steps(summary: Summary) -> tuple[list[tuple[str, float, list[list[float]]]], dict[str, Any]]:
    """(label, updates between points, milliseconds per repeat) of each case, and the frame of their plot."""
    names = words.labels(summary.cases, summary.axes)
    most = _ALL_STEPS // max(1, sum(len(case.step_series) for case in summary.cases))
    made = []
    for case in summary.cases:
        series = [_milliseconds(repeat, most) for repeat in case.step_series if repeat]
        if series:
            longest = max(len(repeat) for repeat in series)
            made.append((names[case.name], max(1.0, case.updates / max(1, case.repeats) / longest), series))
    frame = layout(_STEPS_HEIGHT, axis("counted update"), axis("step time, ms", rangemode="tozero"))
    return made, frame


def _milliseconds(seconds: tuple[float, ...], most: int) -> list[float]:
    stride = -(-len(seconds) // max(10, most))
    return [float(f"{1e3 * value:.4g}") for value in seconds[::stride]]
