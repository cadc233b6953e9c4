"""What accuracy.py found, as Markdown: float8 beside bf16, seed by seed.

    python table.py OUT      reads OUT/records.jsonl

Losses are means over the last 50 updates. "apart" is the largest distance between two seeds of bf16: what the seed
alone changes. A difference within that is none that is shown; three seeds cannot say more.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def figures(rows: list[Row]) -> dict[str, list[float]]:
    return {
        "training loss, last 50 updates": [statistics.fmean(row["losses"][-50:]) for row in rows],
        "top-1 on held-out images": [row["val_top1"] for row in rows],
        "loss on held-out images": [row["val_loss"] for row in rows],
        "images/s": [row["images_per_s"] for row in rows if row["images_per_s"]],
        "peak memory, GiB": [row["peak_allocated_bytes"] / 2**30 for row in rows if row["peak_allocated_bytes"]],
    }


def main(out: Path) -> None:
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    for row in rows:
        if "problem" in row:
            print(f"* {row['model']} {row['asked']} seed {row['seed']}: {row['problem'].strip().splitlines()[-1]}")
    rows = [row for row in rows if "problem" not in row]
    for model in dict.fromkeys(row["model"] for row in rows):
        by = {(row["asked"], row["seed"]): row for row in rows if row["model"] == model}
        seeds = sorted({seed for kind, seed in by if ("bf16", seed) in by and ("float8", seed) in by})
        if not seeds:
            print(f"\nViT-{model}: no seed has both precisions")
            continue
        plain, low = (figures([by[kind, seed] for seed in seeds]) for kind in ("bf16", "float8"))
        print(f"\nViT-{model}, {by['bf16', seeds[0]]['updates']} updates, seeds {', '.join(map(str, seeds))}\n")
        print("| | bf16, by seed | float8, by seed | float8 - bf16, mean | apart by the seed alone |")
        print("|---|---|---|---|---|")
        for name in plain:
            if not plain[name] or not low[name]:
                continue
            difference = statistics.fmean(low[name]) - statistics.fmean(plain[name])
            apart = max(plain[name]) - min(plain[name]) if len(seeds) > 1 else None
            cells = [", ".join(f"{value:.4g}" for value in values) for values in (plain[name], low[name])]
            print(
                f"| {name} | {cells[0]} | {cells[1]} | {difference:+.3g} | {'' if apart is None else f'{apart:.3g}'} |"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
