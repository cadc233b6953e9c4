"""The parts of a case's worker; the whole of it runs in tests/dist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.data.sources import VAL_IS_TEST
from vitscale.engine.graph import DDP_WARMUP
from vitscale.phases import NullRecorder
from vitscale.study.heartbeat import Beat, Heartbeat, Watched, read_beat
from vitscale.study.worker import Collector, memory_limited, warm_up


def train_row(
    update: int, losses: list[float], *, step_time_s: float = 0.5, images_per_s: float = 64.0
) -> dict[str, Any]:
    return {
        "kind": "train", "update": update, "losses": losses, "step_time_s": step_time_s, "images_per_s": images_per_s,
        "skipped": 1,
    }  # fmt: skip


def eval_row(update: int, top1: float) -> dict[str, Any]:
    return {"kind": "eval", "update": update, "top1": top1, "loss": 1.5}


def test_points_carry_updates_images_and_training_time() -> None:
    collector = Collector()
    collector.start({"notes": []})
    collector.metrics(train_row(2, [3.0, 2.0]))
    collector.metrics(eval_row(2, 0.4))
    collector.metrics(train_row(3, [1.0], step_time_s=2.0, images_per_s=10.5))
    collector.metrics(eval_row(3, 0.6))
    collector.event({"kind": "note"})
    collector.close()
    assert collector.losses == [3.0, 2.0, 1.0]
    assert collector.skipped == 1
    assert collector.learning(0.5) == {
        "split": "val",
        "points": [
            {"update": 2, "images": 64, "seconds": 1.0, "accuracy": 0.4, "loss": 1.5},
            {"update": 3, "images": 85, "seconds": 3.0, "accuracy": 0.6, "loss": 1.5},
        ],
        "target": 0.5,
        "final_accuracy": 0.6,
    }


def test_shares_and_stragglers_are_kept() -> None:
    collector = Collector()
    collector.start({"notes": [], "shares": [12, 12]})
    assert collector.shares == [12, 12]
    collector.event({"kind": "balance", "update": 8, "shares": [16, 8], "gain": 0.5})
    row = {"kind": "straggler", "update": 9, "rank": 1, "since": 5, "cost_s": 0.01, "step_s": 0.04}
    collector.event({**row, "sm_clock_mhz": 990.0, "temperature_c": None})
    assert collector.shares == [16, 8]
    (warning,) = collector.warnings
    assert warning.startswith("rank 1 has kept the others waiting since update 5")
    assert warning.endswith("10 ms longer than theirs, of 40 ms (its GPU: 990 MHz)")


def test_training_time_comes_from_the_clock_that_leaves_measuring_out() -> None:
    times = iter((0.7, 1.9))
    collector = Collector(lambda: next(times))
    collector.start({"notes": []})
    for update in (2, 3):
        collector.metrics(train_row(update, [1.0], step_time_s=50.0))
        collector.metrics(eval_row(update, 0.4))
    learnt = collector.learning(None)
    assert learnt is not None
    assert [point["seconds"] for point in learnt["points"]] == [0.7, 1.9]


def test_the_capture_of_a_graph_is_warm_up() -> None:
    def decided(graph: bool) -> Decisions:
        config = build_config(
            {"train": {"max_updates": 9, "micro_batch_size": 8}, "performance": {"cuda_graph": graph}}
        )
        return decide(config, world_size=1, device_type="cuda")

    plain, graphed = decided(False), decided(True)
    assert [warm_up(asked, plain) for asked in (0, 10, 20)] == [0, 10, 20]
    assert [warm_up(asked, graphed) for asked in (0, 10, 20)] == [DDP_WARMUP + 1, DDP_WARMUP + 1, 20]


def test_accuracy_on_a_source_without_val_is_of_its_test_split() -> None:
    collector = Collector()
    collector.start({"notes": ["something", VAL_IS_TEST]})
    collector.metrics(eval_row(2, 0.4))
    learnt = collector.learning(None)
    assert learnt is not None
    assert learnt["split"] == "test"


def test_a_run_that_did_not_evaluate_has_learnt_nothing_to_tell() -> None:
    assert Collector().learning(None) is None


def test_watching_beats_and_hands_on(tmp_path: Path) -> None:
    heard: list[Any] = []
    during: list[Beat | None] = []

    class Heard(NullRecorder):
        def phase(self, name: Any) -> Any:
            heard.append(name)
            return super().phase(name)

        def update(self, images: int) -> None:
            heard.append(images)
            during.append(read_beat(tmp_path, 0))

        def alive(self) -> None:
            heard.append("alive")

        def finish(self, gather: Any) -> None:
            heard.append("finish")

    watched = Watched(Heard(), Heartbeat(tmp_path, 0))
    with watched.phase("forward"):
        pass
    watched.update(32)
    watched.alive()
    assert read_beat(tmp_path, 0) == Beat(1, 2, 3, "data_wait")
    watched.finish(lambda value: [value])
    assert heard == ["forward", 32, "alive", "finish"]
    # While the recorder opens or closes a trace, nobody waits for updates.
    assert during == [Beat(1, 1, 2, "aside")]
    last = read_beat(tmp_path, 0)
    assert last is not None
    assert last.phase == "aside"


def test_the_limit_ends_a_large_allocation() -> None:
    code = """
import torch
from vitscale.launch.failure import describe
from vitscale.study.worker import memory_limited
with memory_limited(0.25, torch.device("cpu")):
    small = torch.ones(1024, 1024)
    try:
        torch.ones(1024, 1024, 128)  # 512 MiB
    except RuntimeError as error:
        print(describe(error).kind)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "oom"


def test_a_thread_without_room_is_out_of_memory_only_under_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitscale.study.worker.limit_memory", lambda gib, device: None)
    error = RuntimeError("Resource temporarily unavailable")
    with pytest.raises(MemoryError, match="under memory_limit_gib"), memory_limited(0.1, torch.device("cpu")):
        raise error
    with pytest.raises(RuntimeError), memory_limited(None, torch.device("cpu")):
        raise error
    with pytest.raises(RuntimeError, match="another"), memory_limited(0.1, torch.device("cpu")):
        raise RuntimeError("another")
