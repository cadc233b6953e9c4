"""The few figures at the head of the page: highest speed, scaling, noise floor, what did not run, findings."""

from __future__ import annotations

from dataclasses import dataclass

from vitscale.analysis.summary import CaseSummary, Summary
from vitscale.report import words
from vitscale.report.claims import LARGEST_FLOOR
from vitscale.report.verdict import grave_findings
from vitscale.report.verdict_scaling import leading_series
from vitscale.report.verdict_speed import images_per_s, leader, setup


@dataclass(frozen=True)
class Tile:
    """One figure, its name above and a remark below."""

    title: str
    figure: str
    aside: str


def tiles(summary: Summary) -> list[Tile]:
    """Up to five."""
    finished = [case for case in summary.cases if case.images_per_s is not None]
    made = []
    if finished:
        best = leader(finished)
        highest = max((case for case in finished if setup(case) == setup(best)), key=images_per_s)
        made += [_speed(highest, summary), *_scaling(best, summary)]
    return [*made, _noise(summary), _cases(summary), _findings(summary)]


def _speed(best: CaseSummary, summary: Summary) -> Tile:
    assert best.images_per_s is not None
    name = words.labels(summary.cases, summary.axes)[best.name]
    title = "Highest images/s" if best.repeats > 1 else "Highest images/s, one run"
    return Tile(title, words.whole(best.images_per_s.value), name)


def _scaling(best: CaseSummary, summary: Summary) -> list[Tile]:
    series = leading_series(summary, best)
    if series is None:
        return []
    last = series.points[-1]
    identity = next(case.identity for case in summary.cases if case.name == last.case)
    gain, first = words.number(last.speedup.value), series.points[0].world_size
    aside = f"{gain} times on {words.devices(identity)} instead of {first}"
    return [Tile("scaling_efficiency", f"{last.efficiency.value:.2f}", aside)]


def _noise(summary: Summary) -> Tile:
    if summary.noise_floor is None:
        return Tile("Noise floor", "none", "so no difference is claimed")
    if summary.noise_floor > LARGEST_FLOOR:
        return Tile("Noise floor", "over 100 %", "runs differ too much for any claim")
    return Tile("Noise floor", words.percent(summary.noise_floor), "smaller differences are not claimed")


def _cases(summary: Summary) -> Tile:
    ran = sum(1 for case in summary.cases if case.repeats)
    least = min((case.repeats for case in summary.cases if case.repeats), default=0)
    most = max((case.repeats for case in summary.cases), default=0)
    runs = f"{most}" if least == most else f"{least} to {most}"
    aside = f"measured, {runs} {'run' if most == 1 else 'runs'} each" if ran else "gave a measurement"
    return Tile("Cases", f"{ran} of {len(summary.cases)}", aside)


def _findings(summary: Summary) -> Tile:
    grave = grave_findings(summary)
    errors = sum(1 for finding in grave if finding.severity == "error")
    aside = (
        words.plural(errors, "error") + f", {words.plural(len(grave) - errors, 'warning')}" if grave else "none found"
    )
    return Tile("Unfair or doubtful", str(len(grave)), aside)
