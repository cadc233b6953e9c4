"""A table of OUT/records.jsonl in Markdown: a row per variant and split, mean and spread over its seeds.

    python table.py OUT/records.jsonl [--curve]

`final` is the accuracy at the end of the fixed length: the figure that counts. `first at` is when an evaluation first
showed a target, every two epochs, over those seeds that did; on the test split that is a look at the test images, and
stands beside the final accuracy for this reason. --curve prints accuracy against seconds of each variant instead.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def main(path: Path, curve: bool) -> None:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        record = json.loads(line)
        groups[record["variant"], record["split"]].append(record)
    if curve:
        for (variant, split), records in groups.items():
            show_curve(variant, split, [record for record in records if record.get("curve")])
        return
    print(
        "| variant | judged on | seeds | epochs | final | seconds | images/s | first at 90 % | first at 94 % | set-up |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (variant, split), records in groups.items():
        print(row(variant, split, records))


def row(variant: str, split: str, records: list[dict[str, Any]]) -> str:
    whole = [record for record in records if record["exit_code"] == 0 and "final_top1" in record]
    failed = len(records) - len(whole)
    seeds = f"{len(whole)}" + (f" ({failed} failed)" if failed else "")
    if not whole:
        return f"| {variant} | {split} | {seeds} |" + " |" * 7
    epochs = whole[0]["curve"][-1]["epoch"]
    final = spread([100 * record["final_top1"] for record in whole], "{:.2f}", " %")
    seconds = spread([record["seconds"] for record in whole], "{:.1f}", " s")
    rate = f"{statistics.median(record['images_per_s'] for record in whole):,.0f}"
    first = [first_at(whole, target) for target in ("90%", "94%")]
    setup = f"{statistics.mean(record['setup_s'] for record in whole):.0f} s"
    cells = (variant, split, seeds, f"{epochs:.0f}", final, seconds, rate, *first, setup)
    return "| " + " | ".join(cells) + " |"


def spread(values: list[float], form: str, unit: str) -> str:
    mean = form.format(statistics.mean(values)) + unit
    if len(values) == 1:
        return mean
    return f"{mean} (sd {form.format(statistics.stdev(values))})"


def first_at(records: list[dict[str, Any]], target: str) -> str:
    met = [record["met"][target]["seconds"] for record in records if record["met"][target]]
    return f"{statistics.mean(met):.1f} s ({len(met)} of {len(records)})" if met else f"0 of {len(records)}"


def show_curve(variant: str, split: str, records: list[dict[str, Any]]) -> None:
    print(f"\n{variant}, {split}, {len(records)} seed(s)")
    for points in zip(*(record["curve"] for record in records), strict=False):
        top1 = statistics.mean(point["top1"] for point in points)
        seconds = statistics.mean(point["seconds"] for point in points)
        print(f"  epoch {points[0]['epoch']:5.0f}  {seconds:6.1f} s  {100 * top1:6.2f} %")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--curve" in sys.argv[2:])
