"""From a study's records to its Summary: the one entrance of analysis for reports. Torch-free.

In: Records as they were read. Out: Summary, plain data. Only the last try of a case and repeat counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from vitscale.analysis.cases import Case, group, summarise_case
from vitscale.analysis.lint import lint
from vitscale.analysis.lint_setup import REFERENCE
from vitscale.analysis.scaling import describe, find_lines
from vitscale.analysis.statistics import ALIKE, noise_floor
from vitscale.analysis.summary import Summary
from vitscale.analysis.unequal import find_unequal
from vitscale.errors import DataError
from vitscale.results.record import Record
from vitscale.results.records import latest


def summarise(records: Iterable[Record], broken: int = 0) -> Summary:
    """Say everything that the records of one study show. broken: lines that could not be read."""
    counted = latest(records)
    if not counted:
        raise DataError("the study holds no records; run it, or wait for its first case")
    cases = group(counted)
    lines = find_lines(cases)
    modes = sorted({record.mode for record in counted})
    described = tuple(found for line in lines if (found := describe(line)))
    floor, note = _noise(cases)
    return Summary(
        study=", ".join(dict.fromkeys(record.study for record in counted)),
        mode=", ".join(modes),
        fixed=_common(record.fixed for record in counted),
        axes=_varying(cases),
        cases=tuple(summarise_case(case) for case in cases),
        series=described,
        findings=lint(cases, lines, described),
        noise_floor=floor,
        noise_note=note,
        environments=_environments(counted),
        records=len(counted),
        broken_lines=broken,
        proved=_proved(counted),
        unequal=find_unequal(lines),
    )


def _noise(cases: Sequence[Case]) -> tuple[float | None, str]:
    timed = [case.times for case in cases if case.times]
    if not timed:
        return None, "no case ended with a time"
    noise = noise_floor(timed)
    if noise is None:
        return None, "each case ran once, so nobody knows how much runs differ: no difference here is a claim"
    if noise.spread < ALIKE:
        return None, (
            "the repeats of each case gave the same figure, so how much runs differ is too small to tell, or they are "
            "copies of one run: no difference here is a claim"
        )
    repeated = sum(len(times) > 1 for times in timed)
    return noise.floor, (
        f"runs of the same case differ by {noise.spread:.2%} (standard deviation over {repeated} repeated "
        f"case{'s' if repeated > 1 else ''}, {noise.df} degrees of freedom); with {noise.runs} runs each, two of the "
        f"{len(timed)} cases must differ by more than {noise.floor:.1%} to be told apart"
    )


def _varying(cases: Sequence[Case]) -> tuple[str, ...]:
    names = dict.fromkeys(name for case in cases for name in case.first.axes)
    return tuple(name for name in names if len({repr(case.first.axes.get(name)) for case in cases}) > 1)


def _environments(records: Sequence[Record]) -> tuple[dict[str, Any], ...]:
    counts = Counter(
        json.dumps(record.environment, sort_keys=True, default=str) for record in records if record.environment
    )
    return tuple(json.loads(text) for text, _ in counts.most_common())


def _proved(records: Sequence[Record]) -> bool | None:
    """False if one engine failed the proof, None if one was not looked at."""
    known = {
        record.equal_updates for record in records if record.outcome == "ok" and record.identity.engine != REFERENCE
    }
    if False in known:
        return False
    return True if known == {True} else None


def _common(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None
