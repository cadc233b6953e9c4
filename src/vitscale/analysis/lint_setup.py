"""Rules about the set-up of a study: software, precision, engines, repeats and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import fmean

from vitscale.analysis.cases import Case
from vitscale.analysis.environments import differences, software
from vitscale.analysis.phrases import count, some
from vitscale.analysis.statistics import t_p_value
from vitscale.analysis.study import Study, names
from vitscale.analysis.summary import Finding
from vitscale.results.possible import LEFT_OUT
from vitscale.results.rates import pace
from vitscale.results.record import Record

_ENGINES = {"single", "ddp", "fsdp2", "deepspeed"}
_PRECISIONS = {"float8", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64"}
REFERENCE = "single"  # the engine that the proof compares the others with
_DRIFT = 0.02
_MIN_ORDERED = 8


def single_run(study: Study) -> Iterator[Finding]:
    """Cases that ran once: nobody knows how far a second run would be off."""
    single = [case for case in study.measured if len(case.ok) == 1]
    if single:
        sentence = (
            f"{len(single)} of {count(len(study.measured), 'case')} ran once: their figures have no interval, and no "
            "difference from them is a claim"
        )
        yield Finding("single-run", "warning", sentence, names(single))


def mixed_software(study: Study) -> Iterator[Finding]:
    """Records of one study from different software."""
    seen = [(record.case, software(record.environment)) for record in study.records() if record.environment]
    for case, other in seen[1:]:
        if found := differences(seen[0][1], other):
            what = some(f"{key} {a} and {b}" for key, (a, b) in found.items())
            sentence = f"the study mixes software ({what}): a difference between its cases may be one of that"
            yield Finding("baseline-software", "error", sentence, (seen[0][0], case))
            return


def unlike_devices(study: Study) -> Iterator[Finding]:
    """Records of one study from different kinds of device; several kinds within one run are a rule of their own."""
    by_kind: dict[str, list[str]] = {}
    for record in study.records():
        kinds = _kinds(record)
        if len(kinds) == 1:
            by_kind.setdefault(kinds.pop(), []).append(record.case)
    if len(by_kind) > 1:
        parts = [f"{count(len(found), 'run')} on {kind}" for kind, found in by_kind.items()]
        sentence = f"the study mixes devices ({some(parts)}): a difference between its cases may be one of these"
        rare = min(by_kind.values(), key=len)
        yield Finding("unlike-devices", "error", sentence, tuple(dict.fromkeys(rare)))


def unlike_repeats(study: Study) -> Iterator[Finding]:
    """Runs of one case that were not the same work: their median is of nothing."""
    unlike: dict[str, str] = {}
    for case in study.measured:
        for what, of in _SAME_IN_A_CASE.items():
            seen = dict.fromkeys(value for record in case.ok if (value := of(record)))
            if len(seen) > 1:
                unlike.setdefault(case.name, f"{what}: {some(seen)}")
    if unlike:
        name, what = next(iter(unlike.items()))
        sentence = (
            f"the repeats of {count(len(unlike), 'case')} were not the same work ({what} in {name}): they are no "
            "repeats, and figures over them mean nothing"
        )
        yield Finding("unlike-repeats", "error", sentence, tuple(unlike))


def _kinds(record: Record) -> set[str]:
    """GPUs by their names; a CPU by its model, since processes have no names."""
    if record.identity.device_names:
        return set(record.identity.device_names)
    cpu = (record.environment or {}).get("cpu") or {}
    known = record.identity.device_type == "cpu" and isinstance(cpu, dict) and cpu.get("model")
    return {str(known)} if known else set()


_SAME_IN_A_CASE: dict[str, Callable[[Record], object]] = {
    "devices": lambda record: ", ".join(sorted(_kinds(record))),
    "precisions": lambda record: record.identity.precision,
    "data": lambda record: record.identity.data_source,
    "numbers of images": lambda record: record.identity.train_images,
    "global batches": lambda record: record.identity.global_batch_size,
}


def mixed_precision(study: Study) -> Iterator[Finding]:
    """Cases of different precision side by side."""
    by_precision: dict[str | None, list[Case]] = {}
    for case in study.measured:
        by_precision.setdefault(case.identity.precision, []).append(case)
    if len(by_precision) < 2:
        return
    stated = sorted(str(key) for key in by_precision if key)
    parts = [f"{count(len(by_precision[key]), 'case')} in {key}" for key in stated]
    if None in by_precision:
        parts.append(f"{count(len(by_precision[None]), 'case')} that name none (fp32, if the source kept the default)")
    sentence = f"{' beside '.join(parts)}: only cases of equal precision can be compared"
    rare = min(by_precision.values(), key=len)
    yield Finding("mixed-precision", "warning", sentence, names(rare))


def unproved_engines(study: Study) -> Iterator[Finding]:
    """Engines side by side without the proof that they make the same update."""
    engines: dict[str, list[Case]] = {}
    for case in study.measured:
        if case.identity.engine:
            stage = "" if case.identity.zero_stage is None else f" ZeRO-{case.identity.zero_stage}"
            engines.setdefault(f"{case.identity.engine}{stage}", []).append(case)
    wrong = [name for name, cases in engines.items() if any(r.equal_updates is False for c in cases for r in c.ok)]
    if wrong:
        sentence = (
            f"{some(wrong)} failed the proof of equal updates: the engines do different work, so speed says nothing"
        )
        yield Finding("unproved-engines", "error", sentence, names([case for name in wrong for case in engines[name]]))
    if len(engines) < 2:
        return
    unseen = [
        name
        for name, cases in engines.items()
        if name not in (REFERENCE, *wrong) and not all(r.equal_updates for case in cases for r in case.ok)
    ]
    if unseen:
        verb = "makes" if len(unseen) == 1 else "make"
        sentence = (
            f"nobody proved here that {some(unseen, 7)} {verb} the same update as the others: run the study with "
            "--prove, or vitscale verify, before trusting a difference between engines"
        )
        yield Finding(
            "unproved-engines", "warning", sentence, names([case for name in unseen for case in engines[name]])
        )


def unshuffled(study: Study) -> Iterator[Finding]:
    """Repeats that ran one after the other: a slow hour looks like a slow case."""
    ordered = sorted((r for r in study.records() if r.order is not None), key=lambda record: record.order or 0)
    cases = [record.case for record in ordered]
    blocks = 1 + sum(a != b for a, b in pairwise(cases)) if cases else 0
    if len(set(cases)) > 1 and len(cases) > len(set(cases)) and blocks == len(set(cases)):
        sentence = (
            "the repeats of each case ran in one block, not shuffled among the others: drift of the machine would "
            "look like a difference between cases"
        )
        yield Finding("unshuffled", "warning", sentence)


def study_drift(study: Study) -> Iterator[Finding]:
    """The machine became slower or faster while the study ran."""
    points = [
        (float(record.order), math.log(time) - fmean(math.log(t) for t in case.times))
        for case in study.measured
        if len(case.times) > 1
        for record in case.ok
        if record.order is not None and (time := pace(record)) is not None
    ]
    if len(points) < _MIN_ORDERED:
        return
    slope, p_value = _trend(points, df=len(points) - sum(len(case.times) > 1 for case in study.measured) - 1)
    change = math.expm1(slope * (max(x for x, _ in points) - min(x for x, _ in points)))
    if p_value < 0.01 and abs(change) > _DRIFT:
        how = "slower" if change > 0 else "faster"
        sentence = (
            f"the machine became {abs(change):.1%} {how} from the first to the last run of the study; shuffling keeps "
            "that from favouring a case, but it widens every interval"
        )
        yield Finding("study-drift", "warning", sentence)


def emulated_bf16(study: Study) -> Iterator[Finding]:
    """bf16 on a GPU that has none."""
    emulated = [
        case
        for case in study.measured
        if "bf16" in (case.identity.precision or "")
        and any(
            isinstance(d, dict) and d.get("bf16") == "emulated"
            for d in (case.first.environment or {}).get("devices") or []
        )
    ]
    if emulated:
        sentence = f"bf16 is emulated on this device in {count(len(emulated), 'case')}: its speed says nothing of bf16"
        yield Finding("emulated-bf16", "warning", sentence, names(emulated))


def oversubscribed(study: Study) -> Iterator[Finding]:
    """More processes than CPU cores."""
    crowded = []
    for case in study.measured:
        cpu = (case.first.environment or {}).get("cpu")
        cores = cpu.get("usable_cores") if isinstance(cpu, dict) else None
        if case.identity.device_type == "cpu" and isinstance(cores, int) and case.identity.world_size > cores:
            crowded.append(case)
    if crowded:
        sentence = (
            f"{count(len(crowded), 'case')} ran more processes than the CPU has cores: they show that it works, not "
            "how it scales"
        )
        yield Finding("oversubscribed", "warning", sentence, names(crowded))


def source_notes(study: Study) -> Iterator[Finding]:
    """What a published source says of its own rows."""
    noted: dict[str, list[str]] = {}
    for case in study.cases:
        for record in case.records:
            for note in record.notes if record.source != "vitscale" else ():
                if LEFT_OUT in note:
                    continue  # lint_runs.left_out says it
                noted.setdefault(note, []).append(case.name)
    for note, cases in noted.items():
        sentence = f"the source says of {count(len(set(cases)), 'case')}: {note}"
        yield Finding("source-notes", "note", sentence, tuple(dict.fromkeys(cases)))


def unknown_names(study: Study) -> Iterator[Finding]:
    """Engines and precisions of a published source that nothing here knows, slips of the pen among them."""
    identities = [record.identity for record in study.records() if record.source != "vitscale"]
    engines = {found.engine for found in identities if found.engine} - _ENGINES
    precisions = {
        found.precision for found in identities if found.precision and set(found.precision.split("/")) - _PRECISIONS
    }
    for what, unknown in (("engine", engines), ("precision", precisions)):
        if unknown:
            sentence = f"{what} {some(sorted(unknown))} is none that vitscale knows: it is compared by its name alone"
            cases = [case for case in study.measured if getattr(case.identity, what) in unknown]
            yield Finding("unknown-name", "note", sentence, names(cases))


RULES = (
    unknown_names,
    single_run,
    mixed_software,
    unlike_devices,
    unlike_repeats,
    mixed_precision,
    unproved_engines,
    unshuffled,
    study_drift,
    emulated_bf16,
    oversubscribed,
    source_notes,
)


def _trend(points: list[tuple[float, float]], df: int) -> tuple[float, float]:
    """Slope of a line through the points, and the p-value of it being flat."""
    x0, y0 = fmean(x for x, _ in points), fmean(y for _, y in points)
    sxx = sum((x - x0) ** 2 for x, _ in points)
    if sxx == 0 or df < 1:
        return 0.0, 1.0
    slope = sum((x - x0) * (y - y0) for x, y in points) / sxx
    rest = sum((y - y0 - slope * (x - x0)) ** 2 for x, y in points)
    if rest == 0:
        return slope, 0.0 if slope else 1.0
    return slope, t_p_value(slope / math.sqrt(rest / df / sxx), df)
