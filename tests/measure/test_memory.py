"""Peak memory of the host over a window."""

from __future__ import annotations

import numpy as np
import torch

from vitscale.measure.memory import PeakMemory

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
