"""Draws the pictures of README.md and docs/ from the records under benchmarks/. Needs the docs extra (matplotlib).

python docs/images/draw.py     rewrites docs/images/train.svg, throughput.svg and equality.svg (--png: PNG as well)
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "benchmarks" / "2026-11-train-h200"
PROOF = ROOT / "benchmarks" / "2026-11-verify-cpu" / "proof.json"
BLUE, ORANGE, GREEN, GREY = "#2f6db5", "#d9772b", "#3a8f5c", "#777777"

WINDOW = 50  # updates per point of the loss curve

matplotlib.use("svg")
plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "white",
        "svg.hashsalt": "vitscale",  # the same records give the same file
    }
)


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def draw_training(loss_axes: Axes, accuracy_axes: Axes) -> None:
    """Training loss by update, and accuracy on the test images after each epoch."""
    metrics = rows(TRAIN / "accuracy-metrics.jsonl")
    losses = [loss for row in metrics if row["kind"] == "train" for loss in row["losses"]]
    evals = [row for row in metrics if row["kind"] == "eval"]
    starts = range(0, len(losses) - WINDOW + 1, WINDOW)
    epochs = [(start + WINDOW) / metrics[0]["updates_per_epoch"] for start in starts]
    loss_axes.plot(epochs, [statistics.fmean(losses[start : start + WINDOW]) for start in starts], color=BLUE)
    loss_axes.set(xlabel="epoch", ylabel=f"mean training loss of {WINDOW} updates", title="Loss")
    top1 = [100 * row["top1"] for row in evals]
    accuracy_axes.plot([row["epoch"] for row in evals], top1, "o-", color=ORANGE)
    for row, value in zip(evals, top1, strict=True):
        accuracy_axes.annotate(f"{value:.1f}", (row["epoch"], value), (0, 6), textcoords="offset points", ha="center")
    accuracy_axes.set(xlabel="epoch", ylabel="top-1 on the test images, %", title="Accuracy", ylim=(40, 65))
    accuracy_axes.set_xlim(0.7, 5.3)


def draw_throughput(axes: Axes) -> None:
    """Images/s per case: the median as a bar, the 20 intervals of 10 updates as dots."""
    cases = [row for row in rows(TRAIN / "records.jsonl") if "interval_step_time_s" in row]
    for index, row in enumerate(cases):
        batch = row["images_per_s"] * row["step_time_s"]
        colour = BLUE if row["engine"] == "single" else GREEN
        axes.barh(index, row["images_per_s"], color=colour, alpha=0.35)
        speeds = [batch / seconds for seconds in row["interval_step_time_s"]]
        axes.plot(speeds, [index] * len(speeds), "o", color=colour, markersize=3, alpha=0.6)
        axes.annotate(f"{row['images_per_s']:,.0f}", (max(speeds), index), (6, -3), textcoords="offset points")
    names = [f"{row['engine']} {row['precision'].split('/')[0]}" for row in cases]
    axes.set(yticks=range(len(cases)), yticklabels=names, xlabel="images/s: median (bar) and intervals (dots)")
    axes.set_xlim(0, 3100)
    axes.invert_yaxis()


def draw_equality(axes: Axes) -> None:
    """Every figure of a proof that has a fixed bound, as its share of that bound."""
    figures = [f for f in json.loads(PROOF.read_text())["figures"] if f["bound"] is not None]
    jobs = list(dict.fromkeys(f["job"] for f in figures))
    colours = {"weights": BLUE, "losses": ORANGE, "gradients": GREEN}
    shift = {"weights": -0.22, "losses": 0.0, "gradients": 0.22}
    for quantity, colour in colours.items():
        chosen = [f for f in figures if f["quantity"] == quantity]
        shares = [max(f["value"] / f["bound"], 1e-7) for f in chosen]
        places = [jobs.index(f["job"]) + shift[quantity] for f in chosen]
        axes.plot(shares, places, "o", color=colour, markersize=4, alpha=0.6, label=quantity)
    axes.axvline(1.0, color="#b03030", label="bound")
    axes.set_xscale("log")
    axes.set(yticks=range(len(jobs)), yticklabels=jobs, xlabel="difference from one process, as a share of its bound")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def main(png: bool) -> None:
    """Draw all pictures."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.2, 3.1), layout="constrained")
    draw_training(left, right)
    figure.suptitle("ViT-B/16 at 224 px on CIFAR-10 from random weights; one H200, bf16, DeepSpeed ZeRO 0")
    pictures = {"train": figure}
    pictures["throughput"], axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    draw_throughput(axes)
    if PROOF.exists():
        pictures["equality"], axes = plt.subplots(figsize=(7.6, 3.0), layout="constrained")
        draw_equality(axes)
    for name, picture in pictures.items():
        path = Path(__file__).parent / f"{name}.svg"
        picture.savefig(path, metadata={"Date": None})
        if png:
            picture.savefig(Path("/tmp") / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main("--png" in sys.argv)
