"""The side-by-side table of a bench: one part per precision triple, since rows of different triples do not compare."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from vitscale.bench.case import OURS
from vitscale.results.record import Record

Row = tuple[str, str, str, str, str, str]
MISSING = "not measured"


def table_rows(records: Sequence[Record]) -> dict[str, list[Row]]:
    """Precision triple -> (who, images/s, share of ours, MFU, peak memory, MiB per image), in the order of the rows."""
    parts: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        parts[str(record.identity.precision)][record.case].append(record)
    return {triple: _part(list(cases.values())) for triple, cases in parts.items()}


def _part(cases: list[list[Record]]) -> list[Row]:
    ours = next((images_per_s(case) for case in cases if str(case[0].axes["who"]).startswith(OURS)), None)
    return [_row(case, ours) for case in cases]


def images_per_s(case: Sequence[Record]) -> float | None:
    """Median over all counted updates of all rounds; None if nothing was measured."""
    steps = [step for record in case if record.measurement for step in record.measurement.step_time_s]
    batch = case[0].identity.global_batch_size
    return batch / statistics.median(steps) if steps and batch else None


def _row(case: list[Record], ours: float | None) -> Row:
    first = case[0]
    name = f"{first.axes['who']}{' + compile' if first.axes['compile'] else ''}"
    speed = images_per_s(case)
    if speed is None:
        return (name, _why(case), "", "", "", "")
    measured = [record.measurement for record in case if record.measurement]
    peak = max((max(m.peak_allocated_bytes or m.peak_rss_bytes) for m in measured), default=0)
    flops, limit = measured[0].flops_per_image, measured[0].peak_flops
    mfu = f"{speed * flops / limit:.2f}" if flops and limit else ""
    share = f"{speed / ours:.2f}" if ours else ""
    micro = first.identity.micro_batch_size or 1
    return (name, f"{speed:,.0f}", share, mfu, f"{peak / 2**30:.2f} GiB", f"{peak / 2**20 / micro:.1f}")


def _why(case: list[Record]) -> str:
    record = case[-1]
    if record.outcome == "oom":
        return "out of memory"
    return f"{MISSING}: {record.cause.sentence}" if record.cause else MISSING
