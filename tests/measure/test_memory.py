"""Peak memory of the host over a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscale.measure import memory as memory_module
from vitscale.measure.memory import PeakMemory, free_in_private_pools

MIB = 2**20


def take(mebibytes: int) -> None:
    np.ones(mebibytes * MIB // 8)


def test_a_peak_before_the_window_is_forgotten_and_one_inside_it_is_seen() -> None:
    take(400)
    memory = PeakMemory(torch.device("cpu"))
    memory.start()
    quiet = memory.pause().rss
    memory.start()
    take(200)
    assert memory.pause().rss - quiet > 150 * MIB
    assert memory.pause().rss - quiet < 350 * MIB


def test_what_lies_between_two_windows_does_not_count() -> None:
    memory = PeakMemory(torch.device("cpu"))
    memory.start()
    first = memory.pause().rss
    take(300)
    memory.start()
    assert memory.pause().rss - first < 100 * MIB


def test_the_cpu_has_no_device_memory() -> None:
    memory = PeakMemory(torch.device("cpu"))
    memory.start()
    assert memory.pause()[:2] == (None, None)


GIB = 2**30
SEGMENTS = [
    {"device": 0, "segment_pool_id": (0, 0), "total_size": 9 * GIB, "allocated_size": 1 * GIB},  # the shared pool
    {"device": 0, "segment_pool_id": (0, 1), "total_size": 4 * GIB, "allocated_size": 1 * GIB},  # a graph's
    {"device": 0, "segment_pool_id": [0, 1], "total_size": 2 * GIB, "allocated_size": 0},
    {"device": 1, "segment_pool_id": (0, 1), "total_size": 8 * GIB, "allocated_size": 0},  # another device's
]


def test_what_a_captured_graph_writes_to_counts_although_no_tensor_holds_it() -> None:
    assert free_in_private_pools(SEGMENTS, 0) == 5 * GIB
    assert free_in_private_pools(SEGMENTS, 1) == 8 * GIB
    assert free_in_private_pools(SEGMENTS[:1], 0) == 0


@pytest.mark.parametrize(("reserved", "expected"), [(15 * GIB, 7 * GIB), (6 * GIB, 6 * GIB)])
def test_the_peak_holds_the_private_pools_and_is_never_over_what_is_reserved(
    monkeypatch: pytest.MonkeyPatch, reserved: int, expected: int
) -> None:
    fakes = {
        "reset_peak_memory_stats": lambda _: None,
        "max_memory_allocated": lambda _: 2 * GIB,
        "max_memory_reserved": lambda _: reserved,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(memory_module, "_snapshot", lambda: SEGMENTS)
    memory = PeakMemory(torch.device("cuda", 0))
    memory.start()
    assert memory.pause()[:2] == (expected, reserved)
