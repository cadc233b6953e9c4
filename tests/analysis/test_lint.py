"""Each rule of the lint: it fires on the fault, it is silent on a fair study, and docs explain it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_making import ENVIRONMENT, record, runs

from vitscale.analysis import lint_learning, lint_runs, lint_series, lint_setup
from vitscale.analysis.summarise import summarise
from vitscale.analysis.summary import Finding
from vitscale.results.record import Attribution, Communication, DeviceState, EpochTimes, Learning, Point, Record

DOCS = Path(__file__).parents[2] / "docs" / "lint.md"
SOURCE = "\n".join(Path(m.__file__ or "").read_text() for m in (lint_learning, lint_runs, lint_series, lint_setup))
RULES = sorted(set(re.findall(r'(?:Finding|_differs)\(\s*(?:study, |strong, )?"([a-z0-9-]+)"', SOURCE)))


def line(change: Callable[[int], dict[str, Any]], sizes: tuple[int, ...] = (1, 2, 4), **more: Any) -> list[Record]:
    """A fair weak series; change(n) of a world size makes it unfair."""
    rng = random.Random(0)
    order = iter(range(100))
    made = []
    for repeat in range(3):
        for size in sizes:
            facts = {"mode": "weak", "order": next(order), "equal_updates": True, **more, **change(size)}
            made += [
                r.model_copy(update={"repeat": repeat})
                for r in runs(rng, {"world_size": size}, 0.1 + 0.02 * size, repeats=1, **facts)
            ]
    return made


def on(sizes: set[int], **change: Any) -> Callable[[int], dict[str, Any]]:
    return lambda n: change if n in sizes else {}


def found(records: list[Record], rule: str) -> Finding | None:
    matching = [finding for finding in summarise(records).findings if finding.rule == rule]
    assert len(matching) < 2, matching
    return matching[0] if matching else None


def steps(values: list[float]) -> list[Record]:
    return [record(repeat=r, steps=values) for r in range(2)]


def attributed(n: int, seconds: dict[str, float], **more: Any) -> Record:
    part = Attribution(updates=10, seconds=seconds)
    return record({"world_size": n}, measurement={"attribution": part, **more})


def learned(**more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda n: {"accuracy": 0.9, **more}


def test_a_fair_study_has_no_findings() -> None:
    assert summarise(line(lambda n: {})).findings == ()
    assert summarise(line(lambda n: {"accuracy": 0.9, "identity": {"lr": 1e-3 * n}})).findings == ()


FAULTS: dict[str, tuple[Callable[[], list[Record]], str, str]] = {
    "baseline-data": (
        lambda: line(lambda n: {"identity": {"data_source": "digits" if n == 1 else "cifar10"}}),
        "error",
        "different data sets (digits and cifar10; the baseline, world_size=1: digits)",
    ),
    "baseline-precision": (
        lambda: line(lambda n: {"identity": {"precision": "fp32" if n == 1 else "bf16"}}),
        "error",
        "different precisions (fp32 and bf16",
    ),
    "baseline-device": (
        lambda: line(lambda n: {"identity": {"device_names": ("T4" if n == 1 else "A100",)}}),
        "error",
        "different devices (T4 and A100",
    ),
    "baseline-node": (
        lambda: line(on({1}, environment={**ENVIRONMENT, "cpu": {"model": "Xeon"}})),
        "warning",
        "different machines (Xeon and EPYC",
    ),
    "baseline-software": (
        lambda: line(on({4}, environment={**ENVIRONMENT, "packages": {"torch": "2.13"}})),
        "error",
        "packages.torch 2.14.1 and 2.13",
    ),
    "mixed-devices": (
        lambda: line(lambda n: {"identity": {"device_names": ("A", "A", "A", "B")[:n]}}),
        "error",
        "1 case ran on mixed devices (A and B)",
    ),
    "growing-batch": (
        lambda: line(lambda n: {"identity": {"train_images": 360}}, mode="strong"),
        "warning",
        "1 series called strong scaling: the global batch grows with the devices (16 to 64",
    ),
    "missing-points": (
        lambda: line(on({4}, outcome="oom")),
        "warning",
        "no result at world size 4 (oom)",
    ),
    "forward-varies": (
        lambda: [attributed(n, {"forward": f, "backward": 0.2}) for n, f in ((1, 0.1), (2, 0.107))],
        "warning",
        "forward takes 100 to 107 ms (7% apart)",
    ),
    "comm-not-hidden": (
        lambda: [
            attributed(
                2, {"backward": 0.09, "exposed_comm": 0.01}, communication=Communication(seconds_per_update=0.0105)
            )
        ],
        "warning",
        "1 case: up to 10 ms of an update of 100 ms",
    ),
    "unlike-devices": (
        lambda: [record({"engine": e}, identity={"device_names": (d,)}) for e, d in (("ddp", "T4"), ("fsdp2", "A100"))],
        "error",
        "the study mixes devices (1 run on T4 and 1 run on A100)",
    ),
    "unlike-repeats": (
        lambda: [record(repeat=r, identity={"precision": p}) for r, p in enumerate(("fp32", "bf16"))],
        "error",
        "the repeats of 1 case were not the same work (precisions: fp32 and bf16 in world_size=1)",
    ),
    "single-run": (lambda: [record({"world_size": 1})], "warning", "1 of 1 case ran once"),
    "mixed-precision": (
        lambda: [
            record({"engine": e}, identity={"precision": p}) for e, p in (("a", "fp16"), ("b", "fp32"), ("c", None))
        ],
        "warning",
        "1 case in fp16 beside 1 case in fp32 beside 1 case that name none",
    ),
    "unproved-engines": (
        lambda: [record({"engine": e}) for e in ("ddp", "fsdp2", "single")],
        "warning",
        "ddp and fsdp2 make the same update",
    ),
    "unshuffled": (
        lambda: [record({"engine": e}, repeat=r, order=2 * i + r) for i, e in enumerate(("a", "b")) for r in range(2)],
        "warning",
        "not shuffled",
    ),
    "study-drift": (
        lambda: [
            record(
                {"engine": e},
                repeat=r,
                order=4 * r + i,
                steps=[(0.1 + 0.1 * i) * (1 + 0.005 * (4 * r + i) + 0.0005 * (i % 2))] * 10,
            )
            for r in range(4)
            for i, e in enumerate("abcd")
        ],
        "warning",
        "slower from the first to the last run",
    ),
    "emulated-bf16": (
        lambda: line(
            lambda n: {"identity": {"precision": "bf16/bf16/bf16"}},
            environment={**ENVIRONMENT, "devices": [{"name": "T4", "bf16": "emulated"}]},
        ),
        "warning",
        "emulated on this device in 3 cases",
    ),
    "oversubscribed": (
        lambda: line(
            lambda n: {"identity": {"device_type": "cpu"}},
            environment={**ENVIRONMENT, "cpu": {"model": "EPYC", "usable_cores": 2}},
        ),
        "warning",
        "1 case ran more processes than the CPU has cores",
    ),
    "unknown-name": (
        lambda: line(on({2}, source="table.csv", identity={"engine": "ddpp"})),
        "note",
        "engine ddpp is none that vitscale knows",
    ),
    "left-out": (
        lambda: line(on({2}, notes=("measurement left out: a step time is not above 0",))),
        "warning",
        "not all figures of 1 case can be used: measurement left out: a step time is not above 0",
    ),
    "source-notes": (
        lambda: line(on({2}, source="table.csv", notes=("read from the figure",))),
        "note",
        "the source says of 1 case: read from the figure",
    ),
    "train-accuracy": (lambda: line(learned(split="train")), "error", "3 cases is training accuracy"),
    "accuracy-falls": (
        lambda: line(lambda n: {"accuracy": 0.9 - 0.02 * n}),
        "warning",
        "accuracy falls from 0.880 on 1 device to 0.820 on 4 devices, where the global batch goes from 16 to 64",
    ),
    "fastest-learns-less": (
        lambda: [
            record({"engine": e}, repeat=r, steps=[s] * 10, accuracy=a + 0.001 * r)
            for e, s, a in (("a", 0.1, 0.5), ("b", 0.2, 0.9))
            for r in range(3)
        ],
        "warning",
        "the fastest case (engine=a) ends at accuracy 0.501 and the best (engine=b) at 0.901",
    ),
    "lr-not-rescaled": (
        lambda: line(lambda n: {"accuracy": 0.9, "identity": {"global_batch_size": 16 * n}}),
        "warning",
        "stays at 0.001 while the global batch goes from 16 to 64",
    ),
    "lr-unknown": (
        lambda: line(learned(identity={"lr": None, "warmup_updates": None})),
        "warning",
        "learning rate and warm-up are not recorded in 3 cases",
    ),
    "target-missed": (
        lambda: line(
            on(
                {4},
                learning=Learning(
                    split="val", target=0.9, points=(Point(update=1, images=1, seconds=1, accuracy=0.5),)
                ),
            )
        ),
        "warning",
        "world_size=4 (3 of 3)",
    ),
    "warmup-in-mean": (lambda: steps([0.2, *[0.1] * 20]), "warning", "the warm-up was too short"),
    "few-updates": (lambda: steps([0.1] * 9), "warning", "fewer than 10 updates were counted in 1 case"),
    "wide-spread": (lambda: steps([0.1, 0.13] * 10), "warning", "more than 20% of the median in 1 case"),
    "run-drift": (lambda: steps([0.1] * 10 + [0.107] * 10), "warning", "slower or faster than its first"),
    "stalls": (lambda: steps([*[0.1] * 9, 0.5, *[0.1] * 10]), "warning", "the mean is more than 10% above the median"),
    "other-time": (lambda: [attributed(1, {"forward": 0.09, "other": 0.01})], "warning", "that no phase explains"),
    "recompiles": (lambda: line(on({2}, measurement={"recompiles": 3})), "warning", "world_size=2 (3)"),
    "throttled": (
        lambda: line(on({2}, measurement={"device_state": (DeviceState(throttled=True),)})),
        "warning",
        "lowered its clocks",
    ),
    "skipped-updates": (lambda: line(on({2}, measurement={"skipped_updates": 1})), "note", "skipped updates in 1 case"),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_the_rule_fires_on_its_fault(rule: str) -> None:
    make, severity, words = FAULTS[rule]
    finding = found(make(), rule)
    assert finding is not None
    assert finding.severity == severity
    assert words in finding.sentence
    assert "\n" not in finding.sentence


def test_every_rule_has_a_test_and_a_place_in_the_docs() -> None:
    assert sorted({*FAULTS, "super-linear"}) == RULES
    explained = re.findall(r"^#+ `([a-z0-9-]+)`", DOCS.read_text(encoding="utf-8"), flags=re.M)
    assert sorted(explained) == RULES


def scaled(rate: float, repeats: int, spread: float) -> list[Record]:
    return [
        record({"world_size": n}, repeat=r, steps=[0.1 * n / speed * (1 + spread * (r - 1))] * 10)
        for n, speed in ((1, 1.0), (2, rate))
        for r in range(repeats)
    ]


@pytest.mark.parametrize(
    ("rate", "repeats", "spread", "severity", "words"),
    [
        (2.2, 1, 0.001, "warning", "1 point above linear speed-up, each from single runs (most: 2.2"),
        (2.04, 3, 0.03, "note", "1 point above linear speed-up, within noise"),
        (2.3, 3, 0.001, "warning", "1 point above linear speed-up, beyond noise"),
    ],
)
def test_points_above_linear_are_judged_by_their_noise(
    rate: float, repeats: int, spread: float, severity: str, words: str
) -> None:
    finding = found(scaled(rate, repeats, spread), "super-linear")
    assert finding is not None
    assert finding.severity == severity
    assert words in finding.sentence
    assert finding.cases == ("world_size=2",)
    assert found(scaled(1.8, repeats, spread), "super-linear") is None


def test_a_batch_that_is_said_to_grow_is_a_note() -> None:
    finding = found(line(lambda n: {}, mode="strong", fixed="per_device"), "growing-batch")
    assert finding is not None
    assert finding.severity == "note"
    same = line(lambda n: {"identity": {"global_batch_size": 64}}, mode="strong", fixed="global")
    assert found(same, "growing-batch") is None


def test_a_failed_proof_is_worse_than_none() -> None:
    made = [record({"engine": e}, repeat=r, equal_updates=e != "fsdp2") for e in ("ddp", "fsdp2") for r in range(2)]
    finding = found(made, "unproved-engines")
    assert finding is not None
    assert finding.severity == "error"
    assert "fsdp2 failed the proof" in finding.sentence


def test_proved_engines_are_silent() -> None:
    made = [
        record({"engine": e}, repeat=r, equal_updates=e != "single" or None)
        for e in ("ddp", "single")
        for r in range(2)
    ]
    assert found(made, "unproved-engines") is None


def test_a_rescaled_learning_rate_is_silent() -> None:
    assert found(line(lambda n: {"accuracy": 0.9, "identity": {"lr": 1e-3 * n}}), "lr-not-rescaled") is None
    assert found(line(learned(identity={"lr_scaling": "linear"})), "lr-not-rescaled") is None


def test_a_fall_within_the_spread_of_repeats_is_silent() -> None:
    made = [
        record({"world_size": n}, repeat=r, accuracy=a + 0.05 * r) for n, a in ((1, 0.80), (4, 0.77)) for r in range(3)
    ]
    assert found(made, "accuracy-falls") is None


def test_hidden_communication_is_silent() -> None:
    part = {"backward": 0.09, "exposed_comm": 0.01}
    assert found([attributed(2, part, communication=Communication(seconds_per_update=0.05))], "comm-not-hidden") is None


def test_epochs_with_their_warm_up_are_told_from_those_that_do_not_say() -> None:
    said, unsaid = (
        [record(repeat=r, epoch_times=EpochTimes(mean_s=9, includes_warmup=flag)) for r in range(2)]
        for flag in (True, None)
    )
    assert "holds the first epoch" in (found(said, "warmup-in-mean") or Finding("", "note", "")).sentence
    assert "without saying" in (found(unsaid, "warmup-in-mean") or Finding("", "note", "")).sentence
    clean = [record(repeat=r, epoch_times=EpochTimes(mean_s=9, includes_warmup=False)) for r in range(2)]
    assert found(clean, "warmup-in-mean") is None


def test_several_nodes_beside_one_are_a_note() -> None:
    finding = found(line(lambda n: {"identity": {"nodes": n}}), "baseline-node")
    assert finding is not None
    assert finding.severity == "note"


def test_findings_come_worst_first() -> None:
    made = line(learned(split="train"), source="t", notes=("a remark",), mode="strong")
    severities = [finding.severity for finding in summarise(made).findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert set(severities) == {"error", "warning", "note"}


def test_a_study_without_one_good_run_is_no_crash() -> None:
    assert summarise([record({"world_size": n}, outcome="error") for n in (1, 2)]).findings == ()


def test_an_engine_that_failed_the_proof_is_named_when_it_is_alone() -> None:
    made = line(lambda n: {"identity": {"engine": "ddp"}, "equal_updates": False})
    finding = found(made, "unproved-engines")
    assert finding is not None
    assert finding.severity == "error"


def test_a_rate_that_stays_over_batches_is_found_beside_series_of_one_batch_each() -> None:
    rng = random.Random(0)
    made = [
        r
        for batch in (64, 256)
        for n in (1, 2)
        for r in runs(rng, {"global_batch_size": batch, "world_size": n}, 0.1 * batch / n, accuracy=0.9)
    ]
    finding = found(made, "lr-not-rescaled")
    assert finding is not None
    assert "from 64 to 256" in finding.sentence


def test_accuracies_on_other_data_are_not_compared() -> None:
    rng = random.Random(0)
    made = [
        r
        for data, accuracy, time in (("cifar10", 0.9, 0.2), ("cifar100", 0.6, 0.1))
        for r in runs(rng, {"data_source": data}, time, accuracy=accuracy)
    ]
    assert found(made, "fastest-learns-less") is None
