"""From records to a Summary: series, speed-up, limits, noise, environments; the whole within its time."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import pytest
from run_making import ENVIRONMENT, record, runs, series

from vitscale.analysis.summarise import summarise
from vitscale.errors import DataError
from vitscale.results.record import Attribution, EpochTimes


def weak(n: int) -> float:
    return n / (1 + 0.1 * (n - 1))


def test_speed_up_and_efficiency_stand_beside_the_smallest_world_size() -> None:
    made = summarise(series(random.Random(0), weak, mode="weak", noise=0.002))
    (found,) = made.series
    assert found.baseline == "world_size=1"
    assert found.label == "all cases"
    assert [point.world_size for point in found.points] == [1, 2, 4, 8]
    assert found.points[0].speedup == (1, 1, 1)
    for point in found.points[1:]:
        low, high = point.speedup[1:]
        assert low is not None
        assert high is not None
        assert low <= weak(point.world_size) <= high
        assert point.efficiency.value == pytest.approx(point.speedup.value / point.world_size)
    assert {fit.law for fit in found.fits} == {"gustafson", "usl"}
    assert made.axes == ("world_size",)
    assert (made.mode, made.records, made.study) == ("weak", 12, "made")


def test_each_law_goes_with_its_mode() -> None:
    for mode, laws in (("strong", {"amdahl", "usl"}), ("grid", {"amdahl", "gustafson", "usl"})):
        (found,) = summarise(series(random.Random(0), weak, mode=mode)).series
        assert {fit.law for fit in found.fits} == laws


def test_cases_that_differ_in_more_than_the_world_size_are_other_series() -> None:
    rng = random.Random(0)
    made = [
        r for engine in ("ddp", "fsdp2") for n in (1, 2) for r in runs(rng, {"engine": engine, "world_size": n}, 0.1)
    ]
    made += runs(rng, {"engine": "single", "world_size": 1}, 0.1)
    found = summarise(made)
    assert [line.label for line in found.series] == ["engine=ddp", "engine=fsdp2"]
    assert set(found.axes) == {"engine", "world_size"}


def test_one_world_size_over_other_numbers_of_nodes_is_another_series() -> None:
    rng = random.Random(0)
    shapes = ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2))
    made = [r for size, nodes in shapes for r in runs(rng, {"world_size": size, "nodes": nodes}, 0.1)]
    assert [[p.world_size for p in line.points] for line in summarise(made).series] == [[1, 2, 4], [2, 4]]


def test_mixed_devices_have_no_law() -> None:
    made = [
        record({"world_size": n}, repeat=r, steps=[0.1 * n] * 10, identity={"device_names": names[:n]})
        for n in (1, 2, 3)
        for r in range(2)
        for names in [("A", "A", "B")]
    ]
    (found,) = summarise(made).series
    assert all(fit.refused and "different kinds" in fit.refused for fit in found.fits)


def attributed(n: int, comm: float, **more: Any) -> list[Any]:
    seconds = {"forward": 0.03, "backward": 0.06, "exposed_comm": comm, "other": 0.001}
    step = sum(seconds.values())
    part = Attribution(updates=10, seconds=seconds)
    return [
        record(
            {"world_size": n}, repeat=r, steps=[step * (1 + 0.001 * r)] * 20, measurement={"attribution": part}, **more
        )
        for r in range(3)
    ]


def test_what_limits_a_series_is_named_with_its_share() -> None:
    (found,) = summarise([*attributed(1, 0), *attributed(8, 0.05)]).series
    assert found.limit == (
        "at 8 devices an update takes 50 ms more than linear scaling would: exposed communication 50 ms of it"
    )


def test_nothing_limits_a_series_that_scales_within_noise() -> None:
    (found,) = summarise([*attributed(1, 0), *attributed(8, 0.00001)]).series
    assert found.limit == "nothing that these runs can show limits it up to 8 devices"


def test_noise_that_could_hide_a_limit_is_said() -> None:
    noisy = [
        record({"world_size": n}, repeat=r, steps=[0.1 * n**0.3 * f] * 10) for n in (1, 4) for r, f in enumerate((1, 4))
    ]
    (found,) = summarise(noisy).series
    assert found.limit == "the runs differ too much to say what limits it up to 4 devices, if anything"


def test_a_limit_needs_an_attribution() -> None:
    (found,) = summarise(series(random.Random(0), weak)).series
    assert found.limit is None


def test_the_noise_floor_needs_repeats() -> None:
    made = summarise(series(random.Random(0), weak, repeats=1))
    assert made.noise_floor is None
    assert made.noise_note == "each case ran once, so nobody knows how much runs differ: no difference here is a claim"
    repeated = summarise(series(random.Random(0), weak, repeats=3))
    assert repeated.noise_floor is not None
    assert "8 degrees of freedom" in (repeated.noise_note or "")
    assert summarise([record(outcome="error")]).noise_note == "no case ended with a time"


def test_only_the_last_try_counts() -> None:
    made = summarise([record(outcome="error"), record()])
    assert made.cases[0].outcomes == {"ok": 1}
    assert made.records == 1


def test_environments_are_listed_once_the_most_frequent_first() -> None:
    other = {**ENVIRONMENT, "python": "3.12"}
    made = [record(repeat=0, environment=other), record(repeat=1), record(repeat=2), record(repeat=3, environment=None)]
    assert summarise(made).environments == (ENVIRONMENT, other)


@pytest.mark.parametrize(
    ("flags", "proved"),
    [(((True, "ddp"), (None, "single")), True), (((True, "ddp"), (False, "fsdp2")), False), (((None, "ddp"),), None)],
)
def test_the_proof_covers_all_engines_or_not(flags: tuple[tuple[bool | None, str], ...], proved: bool | None) -> None:
    made = [record({"engine": engine}, equal_updates=flag) for flag, engine in flags]
    assert summarise(made).proved is proved


def test_an_empty_study_is_a_sentence() -> None:
    with pytest.raises(DataError, match="holds no records"):
        summarise([])


def test_broken_lines_are_passed_on() -> None:
    assert summarise([record()], broken=2).broken_lines == 2


def test_500_records_of_200_steps_take_seconds_and_little_memory() -> None:
    rng = random.Random(0)
    made = [
        r
        for engine in ("ddp", "fsdp2", "deepspeed", "single")
        for micro in (8, 16, 32, 64, 128)
        for n in (1, 2, 4, 8, 16)
        for r in runs(
            rng, {"engine": engine, "micro_batch_size": micro, "world_size": n}, 0.1 + 0.01 * n, repeats=5, updates=200
        )
    ]
    assert len(made) == 500
    start = time.process_time()
    assert len(summarise(made).series) == 20
    assert time.process_time() - start < 5
    tracemalloc.start()
    summarise(made)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.parametrize("facts", [{"steps": []}, {"steps": [0.0] * 20}])
def test_times_of_zero_are_no_crash(facts: dict[str, Any]) -> None:
    made = [record(repeat=i, epoch_times=EpochTimes(mean_s=0), **facts) for i in range(2)]
    assert summarise(made).cases[0].images_per_s is None


def test_a_part_that_grows_more_than_the_whole_is_not_called_a_share_of_it() -> None:
    parts = {1: {"forward": 0.06, "backward": 0.04}, 2: {"forward": 0.04, "backward": 0.07}}
    made = [
        record(
            {"world_size": n},
            repeat=i,
            steps=[sum(seconds.values()) * (1 + i / 1000)] * 20,
            measurement={"attribution": Attribution(updates=10, seconds=seconds)},
        )
        for n, seconds in parts.items()
        for i in range(3)
    ]
    assert (summarise(made).series[0].limit or "").endswith("backward 30 ms, less what other parts gain")


def test_repeats_without_any_spread_give_no_noise_floor() -> None:
    made = summarise([record({"world_size": n}, repeat=r, steps=[0.1] * 10) for n in (1, 2) for r in range(3)])
    assert made.noise_floor is None
    assert "too small to tell" in (made.noise_note or "")
