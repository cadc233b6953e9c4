"""The verdict claims what repeats, intervals and noise floor allow, never more, and finds what was planted."""

from __future__ import annotations

import random
import re

import pytest
import report_making as make

from vitscale.analysis.summary import Fit, Interval
from vitscale.report import claims
from vitscale.report.verdict import sentences, statements

CLAIMS = re.compile(
    r"is the fastest|are the fastest|ahead of|DeepSpeed pays|not needed for speed|more images/s than|still adds|"
    r"slower;|is the best|paid for in accuracy|more than proportional|caps|peaks near"
)


def text_of(summary) -> str:
    return " ".join(sentences(summary))


def about(summary, topic: str) -> str:
    return " ".join(s.sentence for s in statements(summary) if s.topic == topic)


# --- claims -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "repeats", "floor", "answer"),
    [
        (make.around(110), make.around(100), (3, 3), 0.02, "more"),
        (make.around(100), make.around(110), (3, 3), 0.02, "less"),
        (make.around(110), make.around(100), (3, 3), 0.12, "not shown"),  # under the floor
        (make.around(110, 0.2), make.around(100), (3, 3), 0.02, "not shown"),  # its interval holds 1
        (make.around(110), make.around(100), (1, 3), 0.02, "one run"),
        (make.around(110), make.around(100), (3, 3), None, "no noise floor"),
        (Interval(110), Interval(100), (3, 3), 0.02, "no noise floor"),
    ],
)
def test_when_a_difference_is_claimed(a, b, repeats, floor, answer):
    assert claims.compare(a, b, repeats, floor).answer == answer


def test_the_interval_of_a_ratio_adds_in_squares():
    """Two figures with 3 % and 4 %: a ratio with 5 %, not with 7 %."""
    a, b = Interval(100, 100 / 1.03, 103), Interval(100, 100 / 1.04, 104)
    assert claims.ratio_of(a, b).high == pytest.approx(1.05, abs=2e-3)
    assert claims.ratio_of(a, b).low == pytest.approx(1 / 1.05, abs=2e-3)


def test_accuracy_needs_intervals_apart_and_more_so_if_picked_from_many():
    low = make.case("a", accuracy=Interval(0.60, 0.59, 0.61))
    high = make.case("b", accuracy=Interval(0.625, 0.615, 0.635))
    assert claims.compare_accuracy(low, high) == "less"
    assert claims.compare_accuracy(high, low) == "more"
    assert claims.compare_accuracy(low, high, comparisons=20) == "not shown"
    assert claims.compare_accuracy(make.case("a", repeats=1, accuracy=Interval(0.1)), high) == "one run"


# --- nothing is claimed without ground ----------------------------------------------------------------------------


def random_study(seed: int, differ: float, spread: float | None, repeats: int, floor: float | None):
    """Engines on 1 to 4 devices, the speeds of each world size within +-differ of proportional."""
    luck = random.Random(seed)
    cases, series = [], []
    for engine, stage in (("ddp", None), ("fsdp2", None), ("deepspeed", 1), ("deepspeed", 3)):
        line = []
        for n in (1, 2, 4):
            for micro in (16, 64):
                axes = {"engine": f"{engine}{stage}", "micro_batch_size": micro, "world_size": n}
                speed = 1000 * (1 + luck.uniform(-differ, differ) / 2)
                accuracy = Interval(0.6) if spread is None else Interval(0.6 + luck.uniform(-0.01, 0.01), 0.58, 0.62)
                made = make.case(
                    f"{engine}{stage} {micro} x{n}", speed, engine=engine, zero_stage=stage, world_size=n, micro=micro,
                    axes=axes, spread=spread, repeats=repeats, accuracy=accuracy, accuracy_split="val",
                )  # fmt: skip
                cases.append(made)
                if micro == 16:
                    line.append(made)
        parallel = Interval(0.9, 0.8, 0.95) if repeats == 1 else Interval(0.9, 0.0, 1.0)
        fit = Fit("amdahl", {"p": parallel}, max_speedup=10)
        series.append(make.series(f"{engine}{stage}", line, fits=(fit,)))
    axes = ("engine", "micro_batch_size", "world_size")
    return make.summary(*cases, axes=axes, series=tuple(series), noise_floor=floor, proved=None)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_claimed_within_the_noise_floor(seed):
    assert not CLAIMS.findall(text_of(random_study(seed, differ=0.05, spread=0.001, repeats=3, floor=0.06)))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_claimed_where_intervals_are_wide(seed):
    assert not CLAIMS.findall(text_of(random_study(seed, differ=0.3, spread=0.4, repeats=3, floor=0.001)))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_claimed_from_single_runs_and_that_is_said(seed):
    summary = random_study(seed, differ=0.6, spread=None, repeats=1, floor=None)
    assert not CLAIMS.findall(text_of(summary))
    assert "Each case ran once" in about(summary, "Fastest")
    assert "one run each" in about(summary, "Scaling")
    assert "in one run each" in about(summary, "Accuracy")
    assert "ran once" in about(summary, "DeepSpeed")
    assert "more than chance" in about(summary, "Noise floor")


def test_the_same_studies_are_claimed_about_with_ground():
    """The three tests above could not fail if these words never came."""
    found = {match for seed in range(5) for match in CLAIMS.findall(text_of(random_study(seed, 0.6, 0.001, 3, 0.01)))}
    assert {"is the fastest", "ahead of", "is the best", "more images/s than"} <= found


def test_a_rival_that_ran_once_is_not_beaten():
    summary = make.summary(make.case("a", 1200), make.case("b", 1000, engine="fsdp2", repeats=1, spread=None))
    assert "One of the two ran once" in sentences(summary)[0]


def test_a_noisy_third_keeps_the_first_from_being_the_fastest():
    cases = make.case("a", 1200), make.case("b", 1000, engine="fsdp2"), make.case("c", 950, engine="single", spread=0.6)
    first = sentences(make.summary(*cases))[0]
    assert first.startswith("Between ddp with micro_batch_size 64 (1,200 images/s) and single")
    assert "no difference is shown" in first
    assert "is the fastest" not in first


# --- what is planted is found -------------------------------------------------------------------------------------


def test_the_fastest_engine_at_its_best_batch():
    summary = make.batch_study()
    assert sentences(summary)[0].startswith(
        "ddp + compile with micro_batch_size 256 is the fastest on 2 GPUs, each engine at its best batch: 7,"
    )
    assert "micro_batch_size 256 is the best of ddp + compile" in about(summary, "Batch")
    assert "global_batch_size differs" in about(summary, "Batch")


def test_no_gain_above_a_batch():
    summary = make.summary(*(make.case(f"m{m}", s, micro=m) for m, s in ((16, 500), (64, 1000), (256, 1004))))
    assert about(summary, "Batch").startswith("Above micro_batch_size 64 no gain is shown for ddp, up to 256.")


def test_a_larger_batch_that_is_not_better_or_worse():
    summary = make.summary(make.case("a", 1010, micro=16), make.case("b", 1000, micro=64))
    assert about(summary, "Batch").startswith("Above micro_batch_size 16 no gain is shown for ddp, up to 64.")
    worse = make.summary(make.case("a", 1500, micro=16), make.case("b", 1000, micro=64))
    assert "micro_batch_size 16 is the best of ddp: 50 % (" in about(worse, "Batch")


def test_accumulation_has_a_sentence_of_its_own():
    cases = [make.case(f"a{a}", 1000 - 100 * a, accum=a, axes={"grad_accum_steps": a}) for a in (1, 2, 4)]
    assert "grad_accum_steps 1 is the best" in about(make.summary(*cases, axes=("grad_accum_steps",)), "Accumulation")


def test_deepspeed_is_needed_to_fit_or_not_for_speed():
    told = about(make.batch_study(), "DeepSpeed")
    assert "DeepSpeed is needed to fit micro_batch_size 1024 on 2 GPUs" in told
    assert "DeepSpeed ZeRO 3 and DeepSpeed ZeRO 3 + compile did not" in told
    assert "DeepSpeed is not needed for speed on 2 GPUs: ddp + compile trains" in told
    assert "It saves memory: at micro_batch_size 256 DeepSpeed ZeRO 3 peaks at" in told


def test_deepspeed_that_pays():
    cases = make.case("a", 1000), make.case("b", 1300, engine="deepspeed", zero_stage=1)
    assert "DeepSpeed pays on 2 GPUs: its best, DeepSpeed ZeRO 1" in about(make.summary(*cases), "DeepSpeed")


def test_deepspeed_alone_or_elsewhere_is_said():
    alone = make.summary(make.case("a", engine="deepspeed", zero_stage=0))
    assert "Only DeepSpeed was measured" in about(alone, "DeepSpeed")
    apart = make.summary(make.case("a", world_size=1), make.case("b", engine="deepspeed", zero_stage=0))
    assert "No case of DeepSpeed stands beside" in about(apart, "DeepSpeed")
    assert about(make.summary(make.case("a")), "DeepSpeed") == ""


def test_autocast_is_not_set_beside_bf16_weights():
    other = {"precision": "bf16/fp32/fp32"}
    summary = make.summary(make.case("a", 1000), make.case("b", 1500, engine="fsdp2", identity=other))
    told = about(summary, "Speed")
    assert "bf16/bf16/bf16: ddp" in told
    assert "bf16/fp32/fp32: fsdp2" in told
    assert "ahead of" not in told


def test_how_far_it_scales():
    told = about(make.scaling_study(), "Scaling")
    assert "with the global batch fixed, 8 GPUs instead of 1 give 7.00 (6.91 to 7.10) times the images/s" in told
    assert "The step from 4 to 8 GPUs still adds 8" in told
    assert "Amdahl's law, fitted, caps the speed-up at" in told
    assert "The 5 other series end at efficiencies of" in told
    assert about(make.scaling_study(), "Limit").startswith("At 8 GPUs 9 % of an update")


def test_where_more_devices_no_longer_help():
    line = [make.case(f"x{n}", s, world_size=n, axes={"world_size": n}) for n, s in ((1, 100), (2, 190), (4, 191))]
    told = about(make.summary(*line, axes=("world_size",), series=(make.series("", line),)), "Scaling")
    assert "No gain is shown beyond 2." in told
    line[2] = make.case("x4", 150, world_size=4, axes={"world_size": 4})
    told = about(make.summary(*line, axes=("world_size",), series=(make.series("", line),)), "Scaling")
    assert "The step from 2 to 4 GPUs makes it slower; 2 is as far as it pays." in told


def test_super_linear_is_asked_for_an_explanation_only_beyond_noise():
    line = [make.case(f"x{n}", s, world_size=n, axes={"world_size": n}) for n, s in ((1, 100), (2, 230))]
    series = make.series("", line)
    assert "asks for an explanation" in about(make.summary(*line, series=(series,)), "Scaling")
    assert "no loss" in about(make.summary(*line, series=(series,), noise_floor=0.2), "Scaling")


def test_accuracy_that_falls_with_the_devices():
    def study(last: Interval, mode: str = "strong", repeats: int = 3):
        line = [
            make.case(f"x{n}", 100 * n, world_size=n, axes={"world_size": n}, repeats=repeats, accuracy=value,
                      accuracy_split="train")
            for n, value in ((1, Interval(0.585, 0.58, 0.59)), (8, last))
        ]  # fmt: skip
        return about(make.summary(*line, axes=("world_size",), series=(make.series("", line, mode=mode),)), "Accuracy")

    told = study(Interval(0.524, 0.52, 0.53))
    assert "training accuracy at the end is 52.4 % (52.0 % to 53.0 %) on 8 GPUs and 58.5 %" in told
    assert "part of the speed-up is paid for in accuracy" in told
    assert "no difference is shown" in study(Interval(0.57, 0.55, 0.59))
    assert "paid for" not in study(Interval(0.524, 0.52, 0.53), mode="weak")  # other data on each world size


def test_time_to_a_target():
    def reached(name: str, seconds: float | None, engine: str):
        cost = {} if seconds is None else {"seconds_to_target": make.around(seconds), "images_to_target": Interval(9e4)}
        return make.case(name, engine=engine, accuracy=Interval(0.9), accuracy_split="val", target=0.9, **cost)

    cases = reached("a", 100, "ddp"), reached("b", 150, "fsdp2"), reached("c", None, "single")
    told = about(make.summary(*cases), "Accuracy")
    assert "90.0 % validation accuracy is reached first by ddp" in told
    assert "90,000 images" in told
    assert "the next, fsdp2" in told
    assert "1 of the cases did not reach it" in told
    assert "no difference is shown" in about(make.summary(*cases, noise_floor=0.7), "Accuracy")


def test_failures_doubts_and_proof():
    summary = make.scaling_study()
    assert "1 case of 25 gave no measurement (runs: 3 out of memory)" in about(summary, "Failures")
    assert about(summary, "Doubt") == "ddp on 2 devices is 2.6 % above proportional, within the noise."
    assert "covers every engine" in about(summary, "Equality")
    assert "was not proved" in about(make.batch_study(), "Equality")
    failed = make.summary(make.case("a"), make.case("b", engine="fsdp2"), proved=False)
    assert "proof of equality failed" in about(failed, "Equality")


def test_a_study_without_a_measurement():
    told = sentences(make.summary(make.case("a", None), make.case("b", None, outcomes={"timeout": 2})))
    why = "3 runs out of memory and 2 runs timed out"
    assert told[0] == f"No case of this study gave a speed ({why}), so nothing can be compared."


@pytest.mark.parametrize(
    "other", [{"device_names": ("NVIDIA H200", "T4")}, {"nodes": 2}], ids=["mixed devices", "two nodes"]
)
def test_one_node_of_equal_devices_is_not_set_beside_anything_else(other):
    told = text_of(make.summary(make.case("a", 1000, identity=other), make.case("b", 1500, engine="fsdp2")))
    assert "ahead of" not in told


def test_a_batch_that_nobody_recorded_is_not_called_fixed():
    cases = [make.case(f"n{n}", 900 * n, world_size=n, micro=None) for n in (1, 2)]
    told = about(make.summary(*cases, series=(make.series("s", cases, fixed=None),)), "Scaling")
    assert told.startswith("Strong scaling, 2 GPUs instead of 1 give")
    assert "fixed" not in told


def test_amdahls_cap_says_over_how_many_devices():
    cases = [make.case(f"n{n}", 900 * n, world_size=n) for n in (2, 4)]
    fit = Fit("amdahl", {"p": Interval(0.95, 0.94, 0.96)}, ((2, 1), (4, 1.9)))
    told = about(make.summary(*cases, series=(make.series("s", cases, fits=(fit,)),)), "Scaling")
    assert "caps the speed-up over one device at 20.0" in told


def test_no_gain_is_not_said_of_devices_that_nobody_measured():
    """Each doubling stays below the floor, both together do not."""
    cases = [make.case(f"n{n}", speed, world_size=n, spread=0.001) for n, speed in ((1, 1000), (2, 1015), (4, 1030))]
    told = about(make.summary(*cases, series=(make.series("s", cases),)), "Scaling")
    assert "The step from 2 to 4 GPUs alone shows no gain." in told


def test_an_engine_that_is_alone_and_failed_the_proof_is_said():
    told = about(make.summary(make.case("a"), make.case("b", micro=32), proved=False), "Equality")
    assert "failed here" in told
