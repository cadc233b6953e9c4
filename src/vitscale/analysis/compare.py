"""Whether two studies differ, case by case. Torch-free.

In: the records of A and of B. Out: a Comparison, or a CompareError that names what makes them unequal. Runs count, not
updates: t-tests on the logs of the runs' rates, Welch's for up to 3 cases, with a shared spread (moderation.py) for
more. p-values are multiplied by the number of comparisons (Bonferroni), and intervals are at the level that goes with
that, so that a verdict and its interval agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from vitscale.analysis.cases import Case, group
from vitscale.analysis.environments import treatment, unequal
from vitscale.analysis.moderation import STRICTER, moderated
from vitscale.analysis.phrases import count, some
from vitscale.analysis.statistics import ALPHA, Contrast, joint, ratio_interval, welch
from vitscale.analysis.summary import Difference, Interval
from vitscale.errors import CompareError
from vitscale.results.record import Record
from vitscale.results.records import latest

ALL_CASES = "all cases together"


class Broken(NamedTuple):
    """A case that ended ok in A and lost runs in B."""

    case: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """What came of it. broken: what ended ok in A and not in B, or is absent there. notes: what else differs."""

    differences: tuple[Difference, ...]
    broken: tuple[Broken, ...]
    notes: tuple[str, ...]


def compare(
    a_records: Sequence[Record],
    b_records: Sequence[Record],
    *,
    allow_different: bool = False,
    allow_missing: bool = False,
) -> Comparison:
    """Compare the cases that have the same name in both; B's time by A's. allow_missing: what B lacks is not broken."""
    a = {case.name: case for case in group(latest(a_records))}
    b = {case.name: case for case in group(latest(b_records))}
    shared = [name for name in a if name in b]
    if not shared:
        raise CompareError(f"no case is in both: A has {some(a)}, B has {some(b)}")
    differing = _differing([(a[name], b[name]) for name in shared])
    if differing and not allow_different:
        raise CompareError(
            f"A and B are unequal in {some(differing, 5)}; make them equal, or give --allow-different to compare anyway"
        )
    notes = [f"A and B are unequal in {some(differing, 8)}"] if differing else []
    return Comparison(
        _differences([(a[name], b[name]) for name in shared]),
        tuple(
            Broken(name, why)
            for name, case in a.items()
            if (why := _broken(case, b.get(name), allow_missing)) is not None
        ),
        (*notes, *_notes(a, b, shared)),
    )


def _broken(a: Case, b: Case | None, allow_missing: bool) -> str | None:
    """Why B's case is worse off than A's, not counting its speed."""
    if not a.ok:
        return None
    if b is None:
        return None if allow_missing else "absent in B"
    failed = [record for record in b.records if record.outcome != "ok"]
    if failed and (not b.ok or len(failed) > len(a.records) - len(a.ok)):
        kinds = some(dict.fromkeys(record.outcome for record in failed))
        return f"{len(failed)} of {count(len(b.records), 'run')} of B did not end ok ({kinds})"
    if len(b.ok) < len(a.ok) and not allow_missing:
        return f"{count(len(b.ok), 'run')} of B ended ok, {len(a.ok)} of A"
    return None


def _differing(pairs: Sequence[tuple[Case, Case]]) -> list[str]:
    """What forbids the comparison, each thing once, with the values that were seen first."""
    found: dict[str, str] = {}
    for one, other in pairs:
        if not (one.ok and other.ok):
            continue  # a failed case does not know all of what it ran
        # Every run and not the first alone: a study may have been resumed on another machine.
        for a, b in [*((one.first, run) for run in other.ok), *((run, other.first) for run in one.ok)]:
            for key, values in unequal(a, b).items():
                found.setdefault(key, _two(key, values))
    return list(found.values())


def _notes(a: dict[str, Case], b: dict[str, Case], shared: Sequence[str]) -> list[str]:
    notes = []
    found: dict[str, str] = {}
    for name in shared:
        for key, values in treatment(a[name].first, b[name].first).items():
            found.setdefault(key, _two(key, values))
    if found:
        notes.append(f"what else differs, and may be the reason: {some(found.values(), 8)}")
    for label, names in (("A", [n for n in a if n not in b]), ("B", [n for n in b if n not in a])):
        if names:
            notes.append(f"only in {label}: {some(names)}")
    if not all(case.first.environment for name in shared for case in (a[name], b[name])):
        notes.append("an environment is not recorded, so nobody can say whether both ran on the same machine")
    return notes


def _differences(pairs: Sequence[tuple[Case, Case]]) -> tuple[Difference, ...]:
    runs = {one.name: found for one, other in pairs if (found := _runs(one, other))}
    alone = {name: welch(*sides) for name, sides in runs.items()}
    shared = moderated(list(runs.values()))
    judged = alone if shared is None else dict(zip(runs, shared, strict=True))
    # Bonferroni: as many comparisons as rows, the last row included.
    judged = {name: found for name, found in judged.items() if not found.identical}
    correction = (len(judged) + (len(judged) > 1)) * (1.0 if shared is None else STRICTER)
    rows = [
        _judged(one.name, judged[one.name], correction) if one.name in judged else _not_compared(one, other)
        for one, other in pairs
    ]
    together = joint([alone[name] for name in judged]) if len(judged) > 1 else None
    if together and not together.identical:
        rows.append(_judged(ALL_CASES, together, correction))
    return tuple(rows)


def _runs(a: Case, b: Case) -> tuple[Sequence[float], Sequence[float]] | None:
    """What is divided, B's seconds per image by A's; by update or epoch where nobody knows the images."""
    if a.rates and b.rates:
        sides = a.rates, b.rates
    elif a.times and b.times and not _unlike(a, b):
        sides = b.times, a.times
    else:
        return None
    return sides if min(map(len, sides)) > 1 else None


def _unlike(a: Case, b: Case) -> bool:
    """One gives the time of an update and the other that of an epoch."""
    return bool(a.measurements) != bool(b.measurements)


def _judged(name: str, found: Contrast, correction: float) -> Difference:
    p_value = min(1.0, found.p_value() * correction)
    verdict: Literal["slower", "faster", "no difference shown"] = "no difference shown"
    if p_value < ALPHA:
        verdict = "slower" if found.difference > 0 else "faster"
    alpha = ALPHA / correction
    return Difference(name, found.interval(alpha), p_value, verdict, found.smallest_seen(alpha))


def _not_compared(a: Case, b: Case) -> Difference:
    """The ratio is shown where there is one, and no verdict."""
    nothing = next((f"no run of {label} ended ok" for label, case in (("A", a), ("B", b)) if not case.ok), None)
    runs = len(a.times), len(b.times)
    if nothing is None and 0 in runs:
        nothing = "no times were recorded"
    if nothing is None and _unlike(a, b) and not (a.rates and b.rates):
        nothing = "one gives times of updates, the other of epochs"
    if nothing is not None:
        return Difference(a.name, None, None, "not compared", None, nothing)
    ratio = ratio_interval(a.rates, b.rates) if a.rates and b.rates else ratio_interval(b.times, a.times)
    if min(runs) > 1:
        reason = "all runs of a side gave the same figure, so they are no measure of noise, or copies of one run"
        return Difference(a.name, Interval(ratio.value), None, "not compared", None, reason)
    ran = "one run each" if runs == (1, 1) else f"{count(runs[0], 'run')} of A, {count(runs[1], 'run')} of B"
    reason = f"{ran}: without repeats on both sides nobody knows what noise does"
    return Difference(a.name, ratio, None, "not compared", None, reason)


def _two(key: str, values: tuple[Any, Any]) -> str:
    return f"{key} ({_short(values[0])} | {_short(values[1])})"


def _short(value: Any) -> str:
    text = "not known" if value is None or value == () else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
