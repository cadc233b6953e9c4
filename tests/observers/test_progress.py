"""What is shown: plain lines off a terminal, a bar on one, every number as it came."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from vitscale.observers.progress import ProgressObserver, duration, headline

INFO = {
    "engine": "deepspeed",
    "zero_stage": 2,
    "world_size": 2,
    "device": "cuda:0",
    "precision": "bf16/bf16/bf16",
    "micro_batch_size": 16,
    "grad_accum_steps": 2,
    "global_batch_size": 64,
    "train_images": 1437,
    "val_images": 360,
    "total_updates": 100,
    "update": 0,
    "notes": ["3 images [dropped]"],
}


def train(update: int, **more: Any) -> dict[str, Any]:
    row = {"kind": "train", "update": update, "epoch": update / 45, "loss": 0.5, "lr": 3e-4, "images_per_s": 12345.6}
    return {**row, "eta_s": 3723.0, "skipped": 0, "peak_allocated_bytes": 3 * 2**29, **more}


def observe(*rows: dict[str, Any], terminal: bool = False, times: list[float] | None = None) -> str:
    clock = iter(times or [float(20 * n) for n in range(100)])
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, highlight=False, color_system=None)
    observer = ProgressObserver(console, lambda: next(clock))
    observer.start(INFO)
    for row in rows:
        (observer.metrics if row["kind"] in ("train", "eval") else observer.event)(row)
    observer.close()
    return file.getvalue()


def test_plain_lines() -> None:
    lines = observe(
        train(10),
        {"kind": "eval", "update": 45, "epoch": 1.0, "top1": 0.9753, "top5": 0.999, "loss": 0.1, "num_samples": 360},
        {"kind": "checkpoint", "update": 45, "path": "x", "seconds": 0.1},
        {"kind": "note", "update": 45, "text": "a weight is [not] finite"},
    ).splitlines()
    assert lines == [
        headline(INFO),
        "note: 3 images [dropped]",
        "update 10/100  epoch 0.22  loss 0.5000  lr 3.00e-04  12,346 images/s  1.50 GiB  ETA 1:02:03",
        "eval at update 45 (epoch 1.00)  top-1 97.53 %  top-5 99.90 %  loss 0.1000",
        "note: a weight is [not] finite",
    ]


def test_headline_says_engine_batch_and_where_it_goes_on() -> None:
    assert headline(INFO) == (
        "deepspeed zero_stage 2, 2 processes on cuda, bf16/bf16/bf16, batch 16 x 2 x 2 = 64 images; "
        "1,437 train and 360 val images; updates: 100"
    )
    assert headline({**INFO, "update": 40}).endswith("resumed at update 40 of 100")


def test_plain_lines_are_rare_but_the_last_update_is_shown() -> None:
    times = [0.0, 0.0, 3.0, 9.0, 11.0, 11.0, 12.0, 12.0]
    text = observe(train(10), train(20), train(30), train(40), train(100), times=times)
    assert [line.split()[1] for line in text.splitlines() if line.startswith("update")] == [
        "10/100",
        "40/100",
        "100/100",
    ]


def test_skipped_updates_and_host_memory_are_shown() -> None:
    row = train(10, skipped=2, peak_rss_bytes=2**30)
    del row["peak_allocated_bytes"]
    text = observe(row)
    assert "2 skipped" in text
    assert "1.00 GiB" in text


def test_a_terminal_gets_a_bar() -> None:
    text = observe(train(10), train(20), terminal=True)
    assert "20/100" in text
    assert "12,346 images/s" in text


def test_duration() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3600, -1)] == ["0:00:00", "0:01:00", "1:00:00", "0:00:00"]
