"""compare: rarely a difference between equal systems, nearly always one that was put in; refusals name their reason."""

from __future__ import annotations

import random
from typing import Any

import pytest
from run_making import ENVIRONMENT, record, runs

from vitscale.analysis.compare import ALL_CASES, compare
from vitscale.errors import CompareError
from vitscale.results.record import EpochTimes, Measurement, Record


def study(rng: random.Random, factor: float = 1.0, *, cases: int = 6, **more: Any) -> list[Record]:
    axes = [{"micro_batch_size": 16 + i} for i in range(cases)]
    return [r for i, a in enumerate(axes) for r in runs(rng, a, 0.1 * (i + 1) * factor, **{"updates": 5, **more})]


@pytest.mark.parametrize(("cases", "repeats"), [(1, 3), (6, 3), (6, 5), (12, 2)])
def test_equal_systems_differ_in_at_most_5_percent_of_studies(cases: int, repeats: int) -> None:
    rng = random.Random(cases * 10 + repeats)
    studies, wrong = 150, 0
    for _ in range(studies):
        found = compare(*(study(rng, cases=cases, repeats=repeats, noise=0.02) for _ in "ab"))
        wrong += any(row.verdict != "no difference shown" for row in found.differences)
    assert wrong / studies <= 0.05


def test_cases_of_unequal_noise_differ_no_more_often() -> None:
    rng = random.Random(1)

    def uneven(low: float, high: float) -> list[Record]:
        quiet = runs(rng, {"micro_batch_size": 1}, 0.1, repeats=5, noise=low, updates=5)
        return quiet + runs(rng, {"micro_batch_size": 2}, 0.1, repeats=5, noise=high, updates=5)

    wrong = sum(
        any(
            row.verdict != "no difference shown" for row in compare(uneven(0.005, 0.05), uneven(0.02, 0.05)).differences
        )
        for _ in range(200)
    )
    assert wrong / 200 <= 0.06


@pytest.mark.parametrize(("cases", "repeats", "noise"), [(6, 3, 0.01), (12, 3, 0.008), (6, 5, 0.015), (2, 5, 0.01)])
def test_a_slow_down_of_5_percent_in_one_case_is_found_nine_times_of_ten(
    cases: int, repeats: int, noise: float
) -> None:
    rng = random.Random(2)
    slow = f"micro_batch_size={15 + cases}"
    studies, found = 150, 0
    for _ in range(studies):
        a, b = (study(rng, cases=cases, repeats=repeats, noise=noise, updates=100) for _ in "ab")
        b = [r.model_copy(update={"measurement": slower(r, 1.05)}) if r.case == slow else r for r in b]
        rows = {row.case: row for row in compare(a, b).differences}
        found += rows[slow].verdict == "slower"
    assert found / studies >= 0.9


def slower(made: Record, factor: float) -> Measurement:
    assert made.measurement is not None
    return made.measurement.model_copy(update={"step_time_s": tuple(factor * s for s in made.measurement.step_time_s)})


def test_the_report_says_what_it_could_have_seen() -> None:
    """Where noise hides 5 %, smallest_seen is above it."""
    rng = random.Random(3)
    noisy = compare(study(rng, noise=0.05, repeats=3), study(rng, noise=0.05, repeats=3)).differences
    assert all(row.smallest_seen is not None and row.smallest_seen > 0.05 for row in noisy[:-1])


def test_a_small_slow_down_of_every_case_shows_in_all_together() -> None:
    rng = random.Random(4)
    a, b = study(rng, noise=0.02, repeats=3), study(rng, 1.05, noise=0.02, repeats=3)
    rows = {row.case: row for row in compare(a, b).differences}
    assert rows[ALL_CASES].verdict == "slower"
    assert rows[ALL_CASES].ratio is not None
    assert rows[ALL_CASES].ratio.value == pytest.approx(1.05, abs=0.02)


def test_a_study_does_not_differ_from_itself() -> None:
    made = study(random.Random(5))
    for row in compare(made, made).differences:
        assert row.verdict == "no difference shown"
        assert row.ratio is not None
        assert row.ratio.value == 1


def test_verdict_interval_and_p_value_agree() -> None:
    rng = random.Random(6)
    for _ in range(100):
        rows = compare(study(rng, cases=3), study(rng, rng.uniform(0.95, 1.05), cases=3)).differences
        for row in rows:
            assert row.ratio is not None
            assert row.ratio.low is not None
            assert row.ratio.high is not None
            assert row.p_value is not None
            apart = row.ratio.low > 1 or row.ratio.high < 1
            assert apart == (row.p_value < 0.05) == (row.verdict != "no difference shown")


def test_faster_is_below_one() -> None:
    rng = random.Random(7)
    row = compare(study(rng, cases=1), study(rng, 0.8, cases=1)).differences[0]
    assert row.verdict == "faster"
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(0.8, abs=0.05)


def test_single_runs_get_a_ratio_and_no_verdict() -> None:
    rng = random.Random(8)
    (row,) = compare(study(rng, cases=1, repeats=1), study(rng, cases=1, repeats=1)).differences
    assert row.verdict == "not compared"
    assert "one run each" in (row.reason or "")
    assert row.p_value is None
    (row,) = compare(study(rng, cases=1, repeats=3), study(rng, cases=1, repeats=1)).differences
    assert "3 runs of A, 1 run of B" in (row.reason or "")


def test_a_case_that_broke_is_named() -> None:
    a = study(random.Random(9), cases=2)
    b = [r.model_copy(update={"outcome": "oom"}) if r.case == "micro_batch_size=17" else r for r in a]
    found = compare(a, b)
    assert found.broken == (("micro_batch_size=17", "3 of 3 runs of B did not end ok (oom)"),)
    assert "no run of B ended ok" in (found.differences[1].reason or "")
    assert found.differences[1].ratio is None


UNEQUAL = {
    "data": ({"identity": {"data_source": "cifar10"}}, "data_source"),
    "precision": ({"identity": {"precision": "fp16"}}, "precision"),
    "batch": ({"identity": {"global_batch_size": 64}}, "global_batch_size"),
    "device": ({"identity": {"device_names": ("T4",)}}, "device_names"),
    "software": ({"environment": {**ENVIRONMENT, "packages": {"torch": "2.13"}}}, "packages.torch"),
    "hardware": ({"environment": {**ENVIRONMENT, "cpu": {"model": "Xeon", "usable_cores": 16}}}, "cpu.model"),
    "variables": ({"environment": {**ENVIRONMENT, "variables": {"OMP_NUM_THREADS": "9"}}}, "OMP_NUM_THREADS"),
}


@pytest.mark.parametrize("kind", UNEQUAL)
def test_unequal_studies_are_refused_by_name_unless_allowed(kind: str) -> None:
    change, name = UNEQUAL[kind]
    a = [record(repeat=r, steps=[0.1 + 0.001 * r] * 5) for r in range(3)]
    b = [record(repeat=r, steps=[0.1 + 0.001 * r] * 5, **change) for r in range(3)]
    with pytest.raises(CompareError, match=name) as caught:
        compare(a, b)
    assert caught.value.exit_code == 2
    found = compare(a, b, allow_different=True)
    assert found.differences
    assert name in found.notes[0]


def test_the_source_state_of_vitscale_may_differ() -> None:
    other = {**ENVIRONMENT, "git": {"commit": "b"}, "packages": {"vitscale": "0.2.0", "torch": "2.14.1"}}
    other["variables"] = {"TORCH_EXTENSIONS_DIR": "/elsewhere"}
    a, b = ([record(repeat=r, environment=e) for r in range(2)] for e in (ENVIRONMENT, other))
    assert compare(a, b).notes == ()


def test_networks_count_only_between_nodes() -> None:
    other = {**ENVIRONMENT, "networks": [{"name": "veth1", "bits_per_s": None}]}
    a, b = ([record(repeat=r, environment=e) for r in range(2)] for e in (ENVIRONMENT, other))
    assert compare(a, b).notes == ()
    a, b = ([record(repeat=r, environment=e, identity={"nodes": 2}) for r in range(2)] for e in (ENVIRONMENT, other))
    with pytest.raises(CompareError, match="networks"):
        compare(a, b)


def test_what_may_be_the_point_of_the_comparison_is_a_note() -> None:
    a = [record(repeat=r, config={"data": {"workers": 2}, "train": {"seed": r}}) for r in range(2)]
    b = [
        record(repeat=r, identity={"compile": True}, config={"data": {"workers": 4}, "train": {"seed": 9}})
        for r in range(2)
    ]
    (note,) = compare(a, b).notes
    assert "compile (not known | True)" in note
    assert "data.workers (2 | 4)" in note
    assert "seed" not in note


def test_a_key_that_is_off_on_one_side_is_known_to_be_off() -> None:
    a = [record(repeat=r, config={"optim": {"clip_grad": None}, "performance": {"compile": "auto"}}) for r in range(2)]
    b = [record(repeat=r, config={"optim": {"clip_grad": 1.0}, "performance": {"compile": True}}) for r in range(2)]
    (note,) = compare(a, b).notes
    assert "optim.clip_grad (none | 1.0)" in note
    assert "compile" not in note


def test_cases_of_one_side_are_named() -> None:
    a, b = [record({"engine": "ddp"}), record({"engine": "single"})], [record({"engine": "ddp"})]
    assert "only in A: engine=single" in compare(a, b).notes
    with pytest.raises(CompareError, match="no case is in both"):
        compare(a[1:], b)


def test_unknown_environments_are_said() -> None:
    a = [record(repeat=r, environment=None) for r in range(2)]
    assert any("not recorded" in note for note in compare(a, a).notes)


def test_epoch_times_are_compared_with_epoch_times_only() -> None:
    def published(mean: float) -> dict[str, Any]:
        return {"epoch_times": EpochTimes(mean_s=mean), "measurement": None}

    epochs = [record(repeat=r).model_copy(update=published(10 + 0.1 * r)) for r in range(3)]
    slow = [record(repeat=r).model_copy(update=published(20 + 0.1 * r)) for r in range(3)]
    assert compare(epochs, slow).differences[0].verdict == "slower"
    bare = Measurement(step_time_s=(0.1,))
    steps = [
        record(repeat=r).model_copy(update={"measurement": bare, "identity": epochs[0].identity}) for r in range(3)
    ]
    assert "of epochs" in (compare(steps, epochs).differences[0].reason or "")


def test_every_run_must_be_equal_and_not_the_first_alone() -> None:
    rng = random.Random(0)
    a, b = runs(rng, {"world_size": 1}, 0.1), runs(rng, {"world_size": 1}, 0.1)
    b[2] = b[2].model_copy(update={"environment": {**ENVIRONMENT, "driver": "999"}})
    for one, other in ((a, b), (b, a)):
        with pytest.raises(CompareError, match="driver"):
            compare(one, other)


def test_cases_and_runs_that_b_lacks_are_broken_unless_they_may_be_missing() -> None:
    a = study(random.Random(10), cases=3)
    absent = [r for r in a if r.case != "micro_batch_size=17"]
    assert compare(a, absent).broken == (("micro_batch_size=17", "absent in B"),)
    fewer = [r for r in a if (r.case, r.repeat) != ("micro_batch_size=18", 2)]
    assert compare(a, fewer).broken == (("micro_batch_size=18", "2 runs of B ended ok, 3 of A"),)
    for less in (absent, fewer):
        assert compare(a, less, allow_missing=True).broken == ()
        assert compare(less, a).broken == ()


def test_a_case_that_lost_a_repeat_is_broken_whatever_may_be_missing() -> None:
    a = study(random.Random(11), cases=1)
    b = [r.model_copy(update={"outcome": "timeout"}) if r.repeat == 1 else r for r in a]
    for allow_missing in (False, True):
        (found,) = compare(a, b, allow_missing=allow_missing).broken
        assert found.why == "1 of 3 runs of B did not end ok (timeout)"
    assert compare(b, b).broken == ()


def test_identical_runs_are_not_compared() -> None:
    a, b = ([record(repeat=r, steps=[time] * 5) for r in range(3)] for time in (0.1, 0.101))
    (row,) = compare(a, b).differences
    assert (row.verdict, row.p_value, row.smallest_seen) == ("not compared", None, None)
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(1.01)
    assert row.ratio.low is None
    assert "same figure" in (row.reason or "")
