"""Heartbeats: cheap for the rank, and a hang told from slowness by a parent with its own clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vitscale.study.heartbeat import ASIDE, Hang, HangWatch, Heartbeat, clear_beats, read_beat


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """Ranks that beat, and a watch that polls every half second."""

    def __init__(self, folder: Path, ranks: int = 2, hang_s: float = 30.0) -> None:
        self.clock = Clock()
        self.watch = HangWatch(folder, ranks, hang_s=hang_s, clock=self.clock)
        self.ranks = [Heartbeat(folder, rank) for rank in range(ranks)]

    def update(self, seconds: float = 1.0, phases: tuple[str, ...] = ("forward", "backward")) -> Hang | None:
        for rank in self.ranks:
            for phase in phases:
                rank.mark(phase)
        found = self.passes(seconds)
        for rank in self.ranks:
            rank.beat()
        return found or self.watch.poll()

    def passes(self, seconds: float) -> Hang | None:
        found = None
        end = self.clock.now + seconds
        while self.clock.now < end and found is None:
            self.clock.now = min(self.clock.now + 0.5, end)
            found = self.watch.poll()
        return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_beat(tmp_path, 0) is None
    beat = Heartbeat(tmp_path, 0)
    beat.mark("forward")
    beat.beat()
    beat.alive()
    assert read_beat(tmp_path, 0) == (read := read_beat(tmp_path, 0))
    assert read is not None
    assert (read.updates, read.steps, read.marks, read.phase) == (1, 2, 1, "forward")


def test_a_beat_costs_microseconds(tmp_path: Path) -> None:
    beat = Heartbeat(tmp_path, 0)

    def cost() -> float:
        began = time.perf_counter()
        for _ in range(1000):
            beat.beat()
            beat.mark("forward")
        return (time.perf_counter() - began) / 1000

    assert min(cost() for _ in range(5)) < 10e-6


def test_steady_updates_are_no_hang(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert not any(scene.update(7.0) for _ in range(30))


def test_silence_after_the_second_update_is_a_hang_after_30_s(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.update()
    scene.update()
    began = scene.clock.now
    hang = scene.passes(60)
    assert hang is not None
    assert 30 < scene.clock.now - began <= 31


@pytest.mark.parametrize("updates", [0, 1])
def test_before_the_second_update_silence_means_nothing(tmp_path: Path, updates: int) -> None:
    scene = Scene(tmp_path)
    for rank in scene.ranks:
        rank.mark("forward")
    for _ in range(updates):
        scene.update()
    assert scene.passes(3000) is None


def test_slow_updates_have_ten_times_their_median(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for seconds in (300, 8):  # the first one compiles
        assert scene.update(seconds) is None
    began = scene.clock.now
    hang = scene.passes(1000)
    assert hang is not None
    assert scene.clock.now - began == pytest.approx(80, abs=2)
    assert hang.limit_s == pytest.approx(80, abs=2)


def test_one_slow_update_does_not_end_a_run(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(5):
        scene.update(1.0)
    assert scene.update(29) is None
    assert scene.update(1.0) is None


def test_the_rank_that_is_behind_is_named(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ranks=3)
    for _ in range(4):
        scene.update()
    for rank in (0, 2):  # rank 1 never gets to backward; the others wait there for its gradients
        scene.ranks[rank].mark("forward")
        scene.ranks[rank].mark("backward")
    scene.ranks[1].mark("forward")
    hang = scene.passes(60)
    assert hang is not None
    assert (hang.rank, hang.updates, hang.phase, hang.alone) == (1, 4, "forward", True)
    assert "rank 1 hung in phase forward of update 5" in hang.sentence()
    assert "the furthest behind" in hang.sentence()


def test_ranks_that_are_equally_far_are_said_to_be(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(3):
        scene.update()
    hang = scene.passes(60)
    assert hang is not None
    assert not hang.alone
    assert "furthest behind" not in hang.sentence()


def test_a_rank_an_update_ahead_does_not_hide_the_one_behind(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(3):
        scene.update()
    scene.ranks[0].beat()  # it had no reason to wait yet
    hang = scene.passes(60)
    assert hang is not None
    assert hang.rank == 1


@pytest.mark.parametrize("phase", ["checkpoint", ASIDE])
def test_other_work_than_updates_is_not_timed(tmp_path: Path, phase: str) -> None:
    scene = Scene(tmp_path)
    for _ in range(5):
        scene.update()
    for rank in scene.ranks:
        rank.mark(phase)
    assert scene.passes(500) is None
    assert scene.update() is None  # and the time that it took is not held against the next update
    assert scene.passes(25) is None
    assert scene.passes(10) is not None


def test_batches_of_an_evaluation_beat_too(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for _ in range(5):
        scene.update()
    for rank in scene.ranks:
        rank.mark("evaluate")
    assert scene.passes(200) is None  # its first batches may compile
    for _ in range(20):
        for rank in scene.ranks:
            rank.alive()
        assert scene.passes(5) is None
    hang = scene.passes(100)
    assert hang is not None
    assert "in an evaluation" in hang.sentence()


def test_an_old_runs_beats_are_forgotten(tmp_path: Path) -> None:
    old = Heartbeat(tmp_path, 0)
    for _ in range(9):
        old.beat()
    clear_beats(tmp_path)
    watch = HangWatch(tmp_path, 1)
    assert read_beat(tmp_path, 0) is None
    assert watch.poll() is None
