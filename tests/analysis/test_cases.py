"""What is said of one case: medians of runs, unknown where not measured, failures as rows."""

from __future__ import annotations

import pytest
from run_making import record

from vitscale.analysis.cases import group, summarise_case, thin
from vitscale.analysis.summary import CaseSummary
from vitscale.results.record import (
    Attribution,
    Cause,
    Communication,
    DeviceState,
    EpochTimes,
    Learning,
    Point,
    Record,
)


def summary(*records: Record) -> CaseSummary:
    (case,) = group(records)
    return summarise_case(case)


def test_a_runs_figure_is_the_median_of_its_updates() -> None:
    made = summary(
        record(repeat=0, steps=[0.1, 0.1, 9.0]), record(repeat=1, steps=[0.2, 0.2, 0.2]), record(repeat=2, steps=[0.3])
    )
    assert made.step_time_s is not None
    assert made.step_time_s.value == 0.2
    assert made.images_per_s is not None
    assert made.images_per_s.value == pytest.approx(80)
    assert (made.repeats, made.updates) == (3, 7)


def test_rates_use_the_images_of_each_update() -> None:
    short_last = record(steps=[0.1, 0.1, 0.05], measurement={"images": (16, 16, 8)})
    assert summary(short_last).images_per_s == (pytest.approx(160), None, None)
    assert summary(record(measurement={"images": ()})).images_per_s == (pytest.approx(160), None, None)


def test_nothing_is_made_up() -> None:
    made = summary(record(steps=[], measurement={"images": ()}))
    for field in ("step_time_s", "images_per_s", "mfu", "peak_allocated_bytes", "attribution", "communication_bytes"):
        assert getattr(made, field) is None, field
    for field in ("joules_per_1000_images", "power_w", "accuracy", "seconds_to_target", "bytes_per_image"):
        assert getattr(made, field) is None, field


def test_mfu_memory_energy_and_communication() -> None:
    made = summary(
        record(
            {"world_size": 2},
            measurement={
                "flops_per_image": 2e9,
                "peak_flops": 1e12,
                "peak_allocated_bytes": (100, 160),
                "peak_rss_bytes": (7, 5),
                "device_state": (DeviceState(energy_j=30, power_w=200), DeviceState(energy_j=34, power_w=220)),
                "communication": Communication(bytes_per_update=12, seconds_per_update=0.01),
            },
        )
    )
    assert made.mfu == pytest.approx(2e9 * 320 / 1e12)
    assert (made.peak_allocated_bytes, made.peak_rss_bytes, made.bytes_per_image) == (160, 7, 10)
    assert made.joules_per_1000_images == pytest.approx(64 / 640 * 1000)
    assert (made.power_w, made.communication_bytes, made.communication_s) == (210, 12, 0.01)
    one_meter = (DeviceState(energy_j=30), DeviceState())
    assert summary(record(measurement={"device_state": one_meter})).joules_per_1000_images is None


def test_attributions_are_averaged_over_runs_and_still_add_up() -> None:
    parts = [
        Attribution(updates=10, seconds={"forward": f, "backward": 0.06}, unknown={"other": "why"})
        for f in (0.02, 0.04)
    ]
    made = summary(*(record(repeat=i, measurement={"attribution": part}) for i, part in enumerate(parts)))
    assert made.attribution == {"forward": pytest.approx(0.03), "backward": pytest.approx(0.06)}
    assert made.attribution_unknown == {"other": "why"}
    missing = summary(record(measurement={"attribution_missing": "the trace was too slow"}))
    assert missing.attribution is None
    assert missing.attribution_unknown == {"all": "the trace was too slow"}


def test_a_traced_run_is_not_averaged_with_one_that_hides_communication() -> None:
    traced = Attribution(updates=10, seconds={"backward": 0.05, "exposed_comm": 0.03})
    hidden = Attribution(updates=10, method="phases", seconds={"backward": 0.09}, unknown={"exposed_comm": "no trace"})
    made = summary(*(record(repeat=i, measurement={"attribution": part}) for i, part in enumerate((hidden, traced))))
    assert made.attribution == {"backward": 0.05, "exposed_comm": 0.03}
    assert made.attribution_unknown == {}


def test_failures_are_counted_with_their_causes() -> None:
    cause = Cause(sentence="out of memory", rank=1, exit_code=3)
    made = summary(
        record(repeat=0),
        record(repeat=1, outcome="oom", cause=cause),
        record(repeat=2, outcome="oom", cause=cause.model_copy(update={"stderr_tail": "x"})),
    )
    assert made.outcomes == {"ok": 1, "oom": 2}
    assert [found.sentence for found in made.causes] == ["out of memory"]
    assert made.repeats == 1
    nothing = summary(record(outcome="timeout", cause=cause))
    assert nothing.step_time_s is None
    assert nothing.repeats == 0


def learning(*accuracies: float, target: float | None = 0.5) -> Learning:
    points = tuple(
        Point(update=10 * i, images=160 * i, seconds=2.0 * i, accuracy=a) for i, a in enumerate(accuracies, 1)
    )
    return Learning(split="val", points=points, target=target, final_accuracy=accuracies[-1])


def test_cost_to_the_target_is_that_of_the_first_evaluation_that_reaches_it() -> None:
    made = summary(record(learning=learning(0.3, 0.55, 0.45, 0.6)))
    assert made.seconds_to_target == (4, None, None)
    assert made.updates_to_target == (20, None, None)
    assert made.images_to_target == (320, None, None)
    assert made.accuracy == (0.6, None, None)
    assert made.curves == (((10, 160, 2, 0.3), (20, 320, 4, 0.55), (30, 480, 6, 0.45), (40, 640, 8, 0.6)),)


def test_a_run_that_misses_the_target_leaves_the_cost_unknown() -> None:
    made = summary(record(repeat=0, learning=learning(0.3, 0.55)), record(repeat=1, learning=learning(0.3, 0.4)))
    assert made.seconds_to_target is None
    assert made.target == 0.5


def test_epoch_times_stand_in_for_steps() -> None:
    published = record(
        measurement=None, steps=[], epoch_times=EpochTimes(mean_s=100), identity={"train_images": 50_000}
    )
    made = summary(published)
    assert made.images_per_s == (pytest.approx(500), None, None)
    assert made.epoch_time_s == 100
    assert made.step_time_s is None


def test_series_are_thinned_to_200_values_with_both_ends() -> None:
    thinned = thin([float(i) for i in range(1000)])
    assert len(thinned) == 200
    assert (thinned[0], thinned[-1]) == (0, 999)
    assert len(set(thinned)) == 200
    assert thin([1.0, 2.0]) == (1.0, 2.0)


def test_runs_that_tell_other_phases_apart_are_not_averaged_together() -> None:
    seconds = [{"backward": 0.05, "exposed_comm": 0.02}] * 2 + [{"backward": 0.07}]
    made = [record(repeat=i, measurement={"attribution": {"updates": 10, "seconds": s}}) for i, s in enumerate(seconds)]
    assert summarise_case(*group(made)).attribution == pytest.approx({"backward": 0.05, "exposed_comm": 0.02})


def test_times_of_zero_are_none() -> None:
    made = [record(repeat=i, steps=[], epoch_times=EpochTimes(mean_s=0)) for i in range(2)]
    assert group(made)[0].times == ()
