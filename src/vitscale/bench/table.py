"""The side-by-side table of a bench: one part per precision triple, since rows of different triples do not compare."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from vitscale.bench.case import OURS
from vitscale.results.record import Measurement, Record

Row = tuple[str, str, str, str, str, str, str]
COLUMNS = ("images/s", "of ours", "MFU", "peak memory", "MiB per image", "where time goes")
SMALL = 0.005  # a share of an update that is not worth a word
MISSING = "not measured"


def table_rows(records: Sequence[Record]) -> dict[str, list[Row]]:
    """Precision triple -> (who, and a text for each of COLUMNS), in the order of the rows."""
    parts: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        parts[str(record.identity.precision)][record.case].append(record)
    return {triple: _part(list(cases.values())) for triple, cases in parts.items()}


def _part(cases: list[list[Record]]) -> list[Row]:
    ours = next((images_per_s(case) for case in cases if _is_ours(case[0])), None)
    return [_row(case, ours) for case in cases]


def images_per_s(case: Sequence[Record]) -> float | None:
    """Median over rounds, each by the median of its counted updates; None if nothing was measured."""
    rounds = _step_times(case)
    batch = case[0].identity.global_batch_size
    return batch / statistics.median(rounds) if rounds and batch else None


def remarks(records: Sequence[Record]) -> list[str]:
    """What the tables cannot show: rows of one round, whose differences may be noise."""
    cases: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        cases[record.case].append(record)
    rounds = {name: len(_step_times(case)) for name, case in cases.items()}
    once = [name for name, number in rounds.items() if number == 1]
    if not once:
        return []
    who = "every row" if len(once) == sum(number > 0 for number in rounds.values()) else ", ".join(once)
    return [f"{who}: one round, so nobody knows how much of a difference is noise; --rounds 3 shows it"]


def ours_failed(records: Sequence[Record]) -> list[Record]:
    """Rounds of our own rows that did not end ok."""
    return [record for record in records if _is_ours(record) and record.outcome != "ok"]


def _is_ours(record: Record) -> bool:
    return str(record.axes["who"]).startswith(OURS)


def _step_times(case: Sequence[Record]) -> list[float]:
    """The median of each round that was measured."""
    steps = [record.measurement.step_time_s for record in case if record.measurement]
    return [statistics.median(values) for values in steps if values]


def _row(case: list[Record], ours: float | None) -> Row:
    first = case[0]
    name = str(first.axes["who"])
    speed = images_per_s(case)
    if speed is None:
        return (name, _why(case), "", "", "", "", "")
    measured = [record.measurement for record in case if record.measurement]
    peak = max((size for m in measured for size in m.peak_allocated_bytes or m.peak_rss_bytes), default=None)
    flops, limit = measured[0].flops_per_image, measured[0].peak_flops
    mfu = f"{speed * flops / limit:.2f}" if flops and limit else ""
    share = f"{speed / ours:.2f}" if ours else ""
    micro = first.identity.micro_batch_size or 1
    memory = ("", "") if peak is None else (f"{peak / 2**30:.2f} GiB", f"{peak / 2**20 / micro:.1f}")
    return (name, f"{speed:,.0f}", share, mfu, *memory, _where(measured[0]))


def _where(measurement: Measurement) -> str:
    """The parts of an update in percent, and how long the device ran nothing, where a trace told that."""
    if measurement.attribution is None:
        return ""
    seconds = measurement.attribution.seconds
    whole = sum(seconds.values())
    parts = [(name.replace("_", " "), value / whole) for name, value in seconds.items() if whole]
    idle = measurement.attribution.idle_s
    parts += [("device idle", idle / whole)] if idle is not None and whole else []
    return ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= SMALL)


def _why(case: list[Record]) -> str:
    record = case[-1]
    if record.outcome == "oom":
        return "out of memory"
    return f"{MISSING}: {record.cause.sentence}" if record.cause else MISSING
