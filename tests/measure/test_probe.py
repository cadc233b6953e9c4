"""A probe's measurements: of slowness that is known, and where nothing is to be measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import World
from vitscale.measure.probe import (
    PhaseTimes,
    all_reduce_times,
    copy_rate,
    host_to_device_rate,
    loader_rate,
    matrix_rates,
    step_times,
)

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU)


def test_rates_are_positive_and_have_a_spread() -> None:
    rates = {**matrix_rates(CPU), "copy": copy_rate(CPU)}
    assert set(rates) == {"fp32", "bf16", "copy"}
    for rate in rates.values():
        assert 0 < rate.least <= rate.value <= rate.most
        assert rate.repeats >= 3


def test_a_matrix_product_is_counted_as_two_flops_per_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: (time.sleep(0.05), original(a, b))[1])
    rate = matrix_rates(CPU)["fp32"]
    assert rate.most <= 2 * 512**3 / 0.05


def test_a_cpu_copies_nothing_to_a_device_and_one_process_reduces_nothing() -> None:
    assert host_to_device_rate(CPU) is None
    assert all_reduce_times(ALONE) == []


class SlowEngine:
    """Its forward takes 2 ms an image, backward 4 ms, the optimizer 10 ms."""

    def __init__(self, recorder: PhaseTimes) -> None:
        self.recorder = recorder
        self.sizes: list[int] = []

    def train_batch(self, batch: UpdateBatch) -> None:
        images = len(batch.micro_batches[0].images)
        assert batch.num_samples == images
        self.sizes.append(images)
        for name, seconds in (("forward", 0.002 * images), ("backward", 0.004 * images), ("optimizer", 0.01)):
            with self.recorder.phase(name):  # type: ignore[arg-type]
                time.sleep(seconds)


def test_each_part_of_the_step_is_measured_at_each_size_in_turn() -> None:
    recorder = PhaseTimes(CPU)
    engine = SlowEngine(recorder)
    micro = MicroBatch(torch.zeros(8, 1, 2, 2), torch.zeros(8), torch.ones(8), None)
    small, large = step_times(engine, recorder, micro, (2, 8), ALONE, budget_s=0.5)  # type: ignore[arg-type]
    assert engine.sizes[:4] == [2, 8, 2, 8]
    assert (small.images, large.images) == (2, 8)
    assert small.forward.least >= 0.004
    assert large.forward.least >= 0.016
    assert large.backward.least >= 0.032
    assert large.backward.value > large.forward.value > small.forward.value
    assert small.optimizer.repeats == len(engine.sizes) // 2 - 1  # the first of each is left out


class SlowLoader:
    """2 images every 10 ms, of which the first ones were there already."""

    device = CPU

    def __init__(self, workers: int = 0, fast: int = 0, length: int = 10**6, seconds: float = 0.01) -> None:
        self.data = SimpleNamespace(workers=workers)
        self.fast, self.length, self.seconds, self.closed = fast, length, seconds, False

    def iterate(self, start: int, stop: int) -> Iterator[Any]:
        try:
            for number in range(min(stop, self.length)):
                time.sleep(0 if number < self.fast else self.seconds)
                micro = MicroBatch(torch.zeros(2, 1, 2, 2), torch.zeros(2), torch.ones(2), None)
                yield UpdateBatch((micro,), 4, number, 0)
        finally:
            self.closed = True


def test_a_loader_is_measured_without_what_its_workers_had_read_before() -> None:
    loader = SlowLoader(workers=2, fast=4)
    rate = loader_rate(loader, budget_s=0.3)  # type: ignore[arg-type]
    assert rate is not None
    assert 20 < rate.value <= rate.most <= 201  # this rank's own images, and not all ranks'
    assert loader.closed


def test_a_loader_that_gives_next_to_nothing_has_no_rate() -> None:
    assert loader_rate(SlowLoader(seconds=0.2), budget_s=0.1) is None  # type: ignore[arg-type]
