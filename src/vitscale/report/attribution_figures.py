"""Figure of where the wall time of an update goes, stacked per case."""

from __future__ import annotations

from vitscale.analysis.summary import CaseSummary, Summary
from vitscale.report import words
from vitscale.report.bars import MOST_ROWS, frame, in_order, row_labels
from vitscale.report.figure import PHASE_COLOURS, Figure, Key, Panel, Style, Trace, Values, tidy
from vitscale.results.record import PHASES


def attribution(summary: Summary) -> list[Figure]:
    """One figure, if any case has an attribution."""
    told = [case for case in summary.cases if case.attribution and sum(case.attribution.values()) > 0]
    if not told:
        return []
    drawn = in_order(told)
    names = words.labels(told, summary.axes)
    phases = [p for p in (*PHASES[:2], "step", *PHASES[2:]) if any(p in (c.attribution or {}) for c in drawn)]
    keys = {p: Key(p, words.PHASE_NAMES[p], Style(PHASE_COLOURS[p]), area=True) for p in phases}
    head = ("case", "update, ms", *(f"{words.PHASE_NAMES[p]}, ms" for p in phases))
    return [
        Figure(
            name="attribution",
            title="Where the time of an update goes",
            caption=_caption(summary, len(told)),
            panels=(_stack(drawn, names, keys),),
            legend=tuple(keys.values()),
            values=(Values("Values", head, tuple(_row(case, names, phases) for case in told)),),
        )
    ]


def _caption(summary: Summary, told: int) -> str:
    text = "Share of the wall time of one update; at the right its length."
    missing = [case for case in summary.cases if case.repeats and not case.attribution]
    if missing:
        why = next((case.attribution_unknown["all"] for case in missing if "all" in case.attribution_unknown), "")
        text += f" n/a for {words.plural(len(missing), 'case')}{f' ({words.clean(why)})' if why else ''}."
    unknown = {p: why for case in summary.cases for p, why in case.attribution_unknown.items() if p != "all"}
    if unknown:
        reasons = [f"{words.PHASE_NAMES.get(phase, phase)} ({why})" for phase, why in unknown.items()]
        text += f" Not told apart: {words.clean(words.listing(reasons, 2))}."
    return text + (f" The {MOST_ROWS} fastest of {told} cases; Values has all." if told > MOST_ROWS else "")


def _row(case: CaseSummary, names: dict[str, str], phases: list[str]) -> tuple[str, ...]:
    parts = case.attribution or {}
    cells = [words.milliseconds(parts.get(phase)) for phase in phases]
    return (names[case.name], words.milliseconds(sum(parts.values())), *cells)


def _stack(cases: list[CaseSummary], names: dict[str, str], keys: dict[str, Key]) -> Panel:
    totals = [sum((case.attribution or {}).values()) for case in cases]
    labels = row_labels(cases, names)
    traces = [_phase(key, cases, labels, totals) for key in keys.values()]
    layout = frame(labels, "share of wall time, %", 100, barmode="stack")
    layout["xaxis"] = {**layout["xaxis"], "range": [0, 100]}
    layout["margin"] = {**layout["margin"], "r": 72}
    place = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 6, "showarrow": False}
    lengths = [f"{words.milliseconds(total)} ms" for total in totals]
    layout["annotations"] = [{**place, "y": y, "text": text} for y, text in zip(labels, lengths, strict=True)]
    return Panel("attribution-share", "Share of wall time", _description(cases, names, totals), traces, layout)


def _phase(key: Key, cases: list[CaseSummary], labels: list[str], totals: list[float]) -> Trace:
    seconds = [(case.attribution or {}).get(key.group) for case in cases]
    shares = [100 * (s or 0.0) / total for s, total in zip(seconds, totals, strict=True)]
    hover = [
        f"{label}<br>{key.label}: {words.milliseconds(s)} ms, {words.percent(share / 100)}"
        for label, s, share in zip(labels, seconds, shares, strict=True)
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": key.label,
        "legendgroup": key.group,
        "y": labels,
        "x": [tidy(share) for share in shares],
        "text": [f"{share:.0f}" if share >= 7 else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": key.style.colour},
    }


def _description(cases: list[CaseSummary], names: dict[str, str], totals: list[float]) -> str:
    told = []
    for case, total in list(zip(cases, totals, strict=True))[:8]:
        parts = sorted((case.attribution or {}).items(), key=lambda item: -item[1])[:3]
        shares = ", ".join(f"{words.PHASE_NAMES.get(p, p)} {words.percent(s / total)}" for p, s in parts)
        told.append(f"{names[case.name]}: {shares}")
    return "Largest parts of an update. " + "; ".join(told)
