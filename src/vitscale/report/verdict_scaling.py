"""Verdict sentences on scaling: how far it pays, what limits it, and what accuracy stands beside the speed."""

from __future__ import annotations

from vitscale.analysis.summary import CaseSummary, Interval, ScalingPoint, ScalingSeries, Summary
from vitscale.report import words
from vitscale.report.claims import LARGEST_FLOOR, Claim, Statement, compare, compare_accuracy
from vitscale.report.verdict_speed import setup, setup_words

_MOST_SETUPS = 3


def scaling(summary: Summary, leader: CaseSummary) -> list[Statement]:
    """How far the leading series scales, and the range of the others."""
    series = leading_series(summary, leader)
    if series is None:
        return []
    text = _efficiency(series, summary) + _last_step(series, summary) + _ceiling(series, summary)
    others = [
        other.points[-1].efficiency.value
        for other in summary.series
        if other is not series and len(other.points) > 1 and (other.mode, other.fixed) == (series.mode, series.fixed)
    ]
    return [Statement("Scaling", text + _others(others))]


def _others(efficiencies: list[float]) -> str:
    if not efficiencies:
        return ""
    least, most = words.number(min(efficiencies), 2), words.number(max(efficiencies), 2)
    if len(efficiencies) == 1:
        return f" The other series ends at an efficiency of {least}."
    span = least if least == most else f"{least} to {most}"
    return f" The {len(efficiencies)} other series end at efficiencies of {span}."


def limit(summary: Summary, leader: CaseSummary) -> list[Statement]:
    """What limits the leading series, as analysis found it in the attribution."""
    series = leading_series(summary, leader)
    if series is None or not series.limit:
        return []
    return [Statement("Limit", words.sentence(series.limit))]


def accuracy(summary: Summary, leader: CaseSummary) -> list[Statement]:
    """Accuracy beside speed: to a target if there is one, else at the end."""
    measured = [case for case in summary.cases if case.accuracy is not None]
    if not measured:
        return []
    if any(case.target is not None for case in measured):
        return _to_target(measured, summary)
    if ends := _ends(summary, measured):
        return [Statement("Accuracy", _along(ends, summary))]
    measured = [case for case in measured if setup(case) == setup(leader)] or measured
    measured = [case for case in measured if case.accuracy_split == measured[0].accuracy_split]
    if len(measured) > 1:
        return [Statement("Accuracy", _range(measured))]
    return [Statement("Accuracy", f"The {_what(measured[0])} at the end is {_at_end(measured[0])}.")]


# --- the leading series --------------------------------------------------------------------------------------------


def leading_series(summary: Summary, leader: CaseSummary) -> ScalingSeries | None:
    """The series that holds the leading case, else the longest; None if none has two points."""
    usable = [series for series in summary.series if len(series.points) > 1]
    if not usable:
        return None
    holding = [series for series in usable if any(point.case == leader.name for point in series.points)]
    return max(holding or usable, key=lambda series: len(series.points))


def _repeats(summary: Summary, name: str) -> int:
    return next((case.repeats for case in summary.cases if case.name == name), 0)


def _identity_words(summary: Summary, series: ScalingSeries, count: int | None = None) -> str:
    case = next(case for case in summary.cases if case.name == series.points[-1].case)
    return words.devices(case.identity, count)


def _claim(summary: Summary, series: ScalingSeries, a: ScalingPoint, b: ScalingPoint) -> Claim:
    repeats = (_repeats(summary, a.case), _repeats(summary, b.case))
    return compare(a.images_per_s, b.images_per_s, repeats, summary.noise_floor, len(series.points) - 1)


def _growing_batch(series: ScalingSeries, summary: Summary) -> tuple[int, int] | None:
    """The first and the last global batch of a grid in which more devices see more images per update."""
    sizes = {case.name: case.identity.global_batch_size for case in summary.cases}
    first, last = (sizes.get(point.case) for point in (series.points[0], series.points[-1]))
    return (first, last) if series.mode == "grid" and first and last and last > first else None


def _prefix(series: ScalingSeries, summary: Summary) -> str:
    """The series' name and a colon, where there are several."""
    if len(summary.series) < 2:
        return ""
    return f"{words.series_labels(summary)[summary.series.index(series)]}: "


def _efficiency(series: ScalingSeries, summary: Summary) -> str:
    first, last = series.points[0], series.points[-1]
    name = _prefix(series, summary)
    what = {
        "weak": "with the work per device fixed, ",
        "strong": {"global": "with the global batch fixed, ", "per_device": "with the batch per device fixed, "}.get(
            series.fixed or "", "strong scaling, "
        ),
    }.get(series.mode, "")
    if sizes := _growing_batch(series, summary):
        what = f"with a global batch that grows from {sizes[0]:,} to {sizes[1]:,}, "
    where = f"{_identity_words(summary, series)} instead of {first.world_size}"
    efficiency = words.interval(last.efficiency, _share)
    gain = f"{words.interval(last.speedup)} times the images/s, efficiency {efficiency}"
    text = f"{name}{what}{where} give {gain}"
    text = text[0].upper() + text[1:] if not name else text
    repeats = min(_repeats(summary, first.case), _repeats(summary, last.case))
    if repeats < 2:
        return f"{text}; one run each, so this is a figure and not yet a finding."
    if summary.noise_floor is None:
        return f"{text}; there is no noise floor to judge it by."
    return f"{text}{_against_ideal(last.efficiency, summary.noise_floor)}."


def _against_ideal(efficiency: Interval, floor: float) -> str:
    if efficiency.low is None or efficiency.high is None or floor > LARGEST_FLOOR:
        return ""
    if efficiency.low > 1 and efficiency.value > 1 + floor:
        return "; more than proportional, which asks for an explanation before it is believed"
    if efficiency.high >= 1 or efficiency.value >= 1 - floor:
        return "; no loss against proportional scaling is shown"
    return ""


def _share(value: float | None) -> str:
    return words.NONE if value is None else f"{value:.2f}"


def _last_step(series: ScalingSeries, summary: Summary) -> str:
    """Whether the last devices still add anything."""
    best = series.points[0]
    for point in series.points[1:]:
        if _claim(summary, series, point, best).answer == "more":
            best = point
    last, before = series.points[-1], series.points[-2]
    step = f"{before.world_size} to {_identity_words(summary, series)}"
    claim = _claim(summary, series, last, before)
    answer = claim.answer
    if answer == "more":
        return f" The step from {step} still adds {words.percent(claim.ratio.value - 1)}."
    if answer == "less":
        return f" The step from {step} makes it slower; {best.world_size} is as far as it pays."
    if answer == "not shown" and best is last:
        return f" The step from {step} alone shows no gain."
    if answer == "not shown":
        return f" No gain is shown beyond {best.world_size}."
    return ""


def _ceiling(series: ScalingSeries, summary: Summary) -> str:
    """The limit that a fitted law gives, if every point was repeated and the law's own interval knows one."""
    if any(_repeats(summary, point.case) < 2 for point in series.points):
        return ""
    growing = _growing_batch(series, summary)  # Amdahl's law is about work that stays
    for fit in series.fits:
        if not growing and fit.refused is None and fit.law == "amdahl" and (cap := _cap(fit.parameters.get("p"))):
            over = " over one device" if series.points[0].world_size > 1 else ""
            return f" Amdahl's law, fitted, caps the speed-up{over} at {words.interval(cap)} times."
    for fit in series.fits:
        kappa = fit.parameters.get("kappa")
        if fit.refused is None and fit.best_world_size is not None and kappa and (kappa.low or 0) > 0:
            return f" The Universal Scalability Law, fitted, peaks near {fit.best_world_size:,.0f}."
    return ""


def _cap(parallel: Interval | None) -> Interval | None:
    """1 / (1 - p) with its interval; None where that reaches no limit at all."""
    if parallel is None or parallel.low is None or parallel.high is None or parallel.high >= 1:
        return None
    return Interval(1 / (1 - parallel.value), 1 / (1 - parallel.low), 1 / (1 - parallel.high))


# --- accuracy -----------------------------------------------------------------------------------------------------


def _what(case: CaseSummary) -> str:
    return words.SPLITS.get(case.accuracy_split or "", "accuracy")


def _at_end(case: CaseSummary) -> str:
    return words.interval(case.accuracy, words.accuracy)


def _ends(summary: Summary, measured: list[CaseSummary]) -> list[tuple[ScalingSeries, CaseSummary, CaseSummary]]:
    """First and last case of each series on the same data, the largest fall of accuracy first."""
    by_name = {case.name: case for case in measured}
    found = []
    for series in summary.series:
        known = [by_name[point.case] for point in series.points if point.case in by_name]
        if series.mode != "weak" and len(known) > 1 and known[0].accuracy_split == known[-1].accuracy_split:
            found.append((series, known[0], known[-1]))
    return sorted(found, key=lambda ends: _gain(ends[1], ends[2]))


def _gain(first: CaseSummary, last: CaseSummary) -> float:
    assert first.accuracy is not None
    assert last.accuracy is not None
    return last.accuracy.value - first.accuracy.value


def _along(ends: list[tuple[ScalingSeries, CaseSummary, CaseSummary]], summary: Summary) -> str:
    """The series that loses most accuracy, smallest against largest number of devices, and how many lose any."""
    series, first, last = ends[0]
    few, many = words.devices(first.identity), words.devices(last.identity)
    name = _prefix(series, summary)
    text = f"{name}{'the' if name else 'The'} {_what(last)} at the end is {_at_end(last)} on {many}"
    text += f" and {_at_end(first)} on {few}"
    answer = compare_accuracy(last, first, len(ends))
    if answer == "less":
        text += ": part of the speed-up is paid for in accuracy"
    elif answer == "one run":
        text += ", in one run each; a speed-up counts only at equal accuracy"
    elif answer == "not shown":
        text += ": no difference is shown"
    lower = sum(1 for _, a, b in ends if _gain(a, b) < 0)
    several = lower and len(ends) > 1 and answer in ("less", "one run")
    told = f" It is lower on the most devices in {lower} of {len(ends)} series." if several else ""
    return f"{text}.{told}"


def _range(measured: list[CaseSummary]) -> str:
    def value(case: CaseSummary) -> float:
        assert case.accuracy is not None
        return case.accuracy.value

    low, high = min(measured, key=value), max(measured, key=value)
    text = (
        f"The {_what(high)} at the end is between {_at_end(low)} ({_short(low)}) and {_at_end(high)} ({_short(high)})"
    )
    end = {"less": "", "not shown": "; no difference is shown", "one run": ", in one run each"}
    return f"{text}{end.get(compare_accuracy(low, high, len(measured) * (len(measured) - 1) // 2), '')}."


def _short(case: CaseSummary) -> str:
    engine, batch = words.engine(case.identity), case.identity.global_batch_size
    parts = [engine, f"global_batch_size {batch}" if batch else "", words.devices(case.identity)]
    return ", ".join(part for part in parts if part)


def _to_target(measured: list[CaseSummary], summary: Summary) -> list[Statement]:
    """A sentence for each set-up, the largest first: cases of different ones are not set beside each other."""
    groups: dict[tuple[object, ...], list[CaseSummary]] = {}
    for case in measured:
        if case.target is not None:
            kinds = tuple(sorted(set(case.identity.device_names)))
            groups.setdefault((setup(case), kinds, case.target, case.accuracy_split), []).append(case)
    races = sorted(groups.values(), key=len, reverse=True)
    made = []
    for race in races[:_MOST_SETUPS]:
        text = _race(race, summary)
        unsaid = ", ".join(word for word in setup_words(race[0], [other[0] for other in races]) if word not in text)
        made.append(Statement("Accuracy", f"{unsaid}: {text}" if unsaid else text))
    if len(races) > _MOST_SETUPS:
        rest = words.plural(len(races) - _MOST_SETUPS, "more set-up")
        made.append(Statement("Accuracy", f"{rest} with a target: see the figures and the table."))
    return made


def _race(cases: list[CaseSummary], summary: Summary) -> str:
    """Who reaches the target first, on the devices that most cases share; other numbers of devices as figures alone."""
    reached = sorted((case for case in cases if case.seconds_to_target is not None), key=_seconds)
    goal = f"{words.accuracy(cases[0].target)} {_what(cases[0])}"
    if not reached:
        return f"No case reached {goal}."
    sizes: dict[tuple[int, int], list[CaseSummary]] = {}
    for case in reached:
        sizes.setdefault((case.identity.world_size, case.identity.nodes), []).append(case)
    most = max(sizes, key=lambda size: (len(sizes[size]), size))
    best, *rivals = sizes.pop(most)
    took = words.interval(best.seconds_to_target, words.duration)
    text = f"{goal} is reached first by {_named(best, reached, summary)}: {took} of training"
    if best.images_to_target is not None:
        text += f", {words.whole(best.images_to_target.value)} images"
    if rivals:
        text += _beside(best, rivals, reached, summary)
    text += "."
    if elsewhere := [_first_there(found[0], reached, summary) for _, found in sorted(sizes.items())]:
        text += f" On other numbers of devices the first is {words.listing(elsewhere)}."
    missed = len(cases) - len(reached)
    return f"{text} {missed} of the cases did not reach it." if missed else text


def _seconds(case: CaseSummary) -> float:
    assert case.seconds_to_target is not None
    return case.seconds_to_target.value


def _first_there(case: CaseSummary, among: list[CaseSummary], summary: Summary) -> str:
    return f"{_named(case, among, summary)} ({words.duration(_seconds(case))})"


def _named(case: CaseSummary, among: list[CaseSummary], summary: Summary) -> str:
    """A short name; where others have the same, what the study varies, or else the case's own name behind it."""
    alike = [other for other in among if _short(other) == _short(case)]
    if len(alike) == 1 and _short(case):
        return _short(case)
    fuller = words.in_sentence(case, summary)
    if sum(words.in_sentence(other, summary) == fuller for other in alike) > 1:
        fuller = words.clean(case.name)
    return f"{_short(case)} ({fuller})" if _short(case) else fuller


def _beside(best: CaseSummary, rivals: list[CaseSummary], among: list[CaseSummary], summary: Summary) -> str:
    a, b = best.seconds_to_target, rivals[0].seconds_to_target
    assert a is not None
    assert b is not None
    claim = compare(b, a, (rivals[0].repeats, best.repeats), summary.noise_floor, len(rivals))
    text = f"; the next, {_named(rivals[0], among, summary)}, takes {words.duration(b.value)}"
    if claim.answer == "one run":
        return f"{text} (one run each, so no difference is shown)"
    return text if claim.answer == "more" else f"{text} (no difference is shown)"
