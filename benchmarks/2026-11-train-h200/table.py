"""The README's table of measured figures, made from this folder's records.

python benchmarks/2026-11-train-h200/table.py     rewrites it in README.md; tests/test_docs.py compares
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- figures: written by benchmarks/2026-11-train-h200/table.py -->\n", "<!-- end of figures -->\n"


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one of the JSONL files here."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def figures() -> str:
    """Throughput as a table, then overhead and accuracy as sentences."""
    records = {record["case"]: record for record in rows("records.jsonl")}
    head = (
        "| engine | precision | images/s | ms per update: median (least to most) | peak memory |\n" + "|---" * 5 + "|\n"
    )
    table = head + "".join(_row(record) for record in records.values() if "images_per_s" in record)
    return f"{table}\n{_overheads(records)}\n{_accuracy()}"


def _row(record: dict[str, Any]) -> str:
    engine = "DeepSpeed ZeRO 0" if record["engine"] == "deepspeed" else record["engine"]
    steps = [1000 * seconds for seconds in record["interval_step_time_s"]]
    spread = f"{statistics.median(steps):.1f} ({min(steps):.1f} to {max(steps):.1f})"
    memory = f"{record['peak_allocated_bytes'] / 2**30:.2f} GiB"
    return f"| {engine} | {record['precision']} | {record['images_per_s']:,.0f} | {spread} | {memory} |\n"


OVERHEADS = {
    "overhead-single-fp32": "in fp32",
    "overhead-single-bf16-performance.cuda_graph=true": "in bf16 with `performance.cuda_graph=true`",
    "overhead-single-bf16": "in eager bf16, where the host sets the pace of the step itself",
}


def _overheads(records: dict[str, dict[str, Any]]) -> str:
    parts = []
    for case, words in OVERHEADS.items():
        record = records[case]
        shares = [100 * share for share in record["overhead_all"]]
        step = 1000 * statistics.median(record["bare_step_time_s"])
        parts.append(
            f"  {statistics.median(shares):.1f} % of a step of {step:.1f} ms {words} ({min(shares):.1f} to "
            f"{max(shares):.1f} % over {len(shares)} pairs)"
        )
    return (
        "* The trainer (loading, resizing, logging) costs over the bare engine step, goal 2 %:\n"
        + ";\n".join(parts)
        + "."
    )


def _accuracy() -> str:
    metrics = rows("accuracy-metrics.jsonl")
    test = [row for row in metrics if row["kind"] == "eval"][-1]
    train = json.loads((HERE / "accuracy-eval-train.json").read_text(encoding="utf-8"))
    minutes = sum(row["step_time_s"] * len(row["losses"]) for row in metrics if row["kind"] == "train") / 60
    return (
        f"* {test['epoch']:.0f} epochs (bf16, DeepSpeed ZeRO 0, all 50,000 training images, {minutes:.1f} minutes of "
        f"training) give {100 * test['top1']:.2f} % top-1 on\n  the test images and {100 * train['top1']:.2f} % on the "
        "training images: random weights and no augmentation, as the protocol has it.\n"
    )


if __name__ == "__main__":
    before, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{README} has no {BEGIN}"
    assert end, f"{README} has no {END}"
    README.write_text(before + begin + "\n" + figures() + "\n" + end + after, encoding="utf-8")
