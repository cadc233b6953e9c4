"""The verdict: what a study shows, in sentences, the most useful first. Figures and tables are elsewhere.

Each claim of a difference goes through report.claims, so a sentence never says more than the noise floor allows, and
says so where there is one run only.
"""

from __future__ import annotations

from collections import Counter

from vitscale.analysis.summary import CaseSummary, Finding, Summary
from vitscale.report import verdict_scaling, verdict_speed, verdict_unequal, words
from vitscale.report.claims import LARGEST_FLOOR, Statement

_WORST_FIRST = ("error", "warning", "note")


def sentences(summary: Summary) -> list[str]:
    """The verdict as plain sentences."""
    return [statement.sentence for statement in statements(summary)]


def statements(summary: Summary) -> list[Statement]:
    """The verdict, each sentence under its topic."""
    finished = [case for case in summary.cases if case.images_per_s is not None]
    if not finished:
        return [*_nothing(summary), *_doubts(summary)]
    leader = verdict_speed.leader(finished)
    return [
        *verdict_speed.fastest(finished, summary),
        *verdict_scaling.scaling(summary, leader),
        *verdict_scaling.limit(summary, leader),
        *verdict_unequal.devices(summary),
        *verdict_speed.batch(finished, summary),
        *verdict_speed.deepspeed(summary),
        *verdict_scaling.accuracy(summary, leader),
        *_failures(summary),
        *_equality(finished, summary),
        *_noise(summary),
        *_doubts(summary),
    ]


def grave_findings(summary: Summary) -> list[Finding]:
    """Errors first, then warnings; notes are left out."""
    found = [finding for finding in summary.findings if finding.severity != "note"]
    return sorted(found, key=lambda finding: _WORST_FIRST.index(finding.severity))


def _nothing(summary: Summary) -> list[Statement]:
    counts = _outcomes(summary.cases)
    told = words.listing([f"{words.plural(n, 'run')} {words.OUTCOMES[kind]}" for kind, n in counts.items()])  # type: ignore[index]
    what = f"no case of this study gave a speed ({told})" if told else "this study holds no case"
    return [Statement("Result", f"{what[0].upper()}{what[1:]}, so nothing can be compared.")]


def _failures(summary: Summary) -> list[Statement]:
    lost = [case for case in summary.cases if case.repeats == 0]
    partly = [case for case in summary.cases if case.repeats and sum(case.outcomes.values()) > case.repeats]
    if not lost and not partly:
        return []
    counts = _outcomes([*lost, *partly])
    counts.pop("ok", None)
    runs = words.listing([f"{count} {words.OUTCOMES[kind]}" for kind, count in counts.most_common()])  # type: ignore[index]
    ended = sum(case.outcomes.get("ok", 0) - case.repeats for case in [*lost, *partly])
    if ended > 0:
        runs = words.listing([*([runs] if runs else []), f"{ended} ok without a figure"])
    text = f"{words.plural(len(lost), 'case')} of {len(summary.cases)} gave no measurement"
    if partly:
        text += f" and {words.plural(len(partly), 'case')} lost some of the repeats"
    return [Statement("Failures", f"{text} (runs: {runs}); the causes stand below the table.")]


def _outcomes(cases: list[CaseSummary] | tuple[CaseSummary, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case in cases:
        counts.update(case.outcomes)
    return counts


def _equality(finished: list[CaseSummary], summary: Summary) -> list[Statement]:
    engines = {words.engine(case.identity) for case in finished} - {""}
    if len(engines) < 2 and summary.proved is not False:
        return []
    if summary.proved:
        text = "The proof of equality covers every engine here: they make the same update, up to rounding."
    elif summary.proved is False:
        text = "The proof of equality failed here: an engine does not make the same update, so speeds do not compare."
    else:
        text = "That the engines make the same update was not proved with this study, so their speeds compare on trust."
    return [Statement("Equality", text)]


def _noise(summary: Summary) -> list[Statement]:
    why = summary.noise_note or ""
    if summary.noise_floor is not None and summary.noise_floor > LARGEST_FLOOR:
        text = "The runs differ too much for any claim"
    elif summary.noise_floor is not None:
        text = f"Differences below {words.percent(summary.noise_floor)} are not claimed"
    elif all(case.repeats <= 1 for case in summary.cases):
        text, why = "Each case ran once, so no difference between two figures here is shown to be more than chance", ""
    else:
        text = "There is no noise floor, so no difference is claimed"
    return [Statement("Noise floor", words.sentence(f"{text}: {why}" if why else text))]


def _doubts(summary: Summary) -> list[Statement]:
    grave = grave_findings(summary)
    if not grave:
        return []
    worst = words.sentence(grave[0].sentence)
    if len(grave) == 1:
        return [Statement("Doubt", worst)]
    return [Statement("Doubts", f"{len(grave)} findings cast doubt on the comparisons. The first: {worst}")]
