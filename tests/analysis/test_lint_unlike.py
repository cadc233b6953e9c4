"""Lint: devices, precision and data that differ within a study or a case, and points just above linear."""

from __future__ import annotations

import pytest
from run_making import ENVIRONMENT, record

from vitscale.analysis.summarise import summarise
from vitscale.analysis.summary import Finding
from vitscale.results.record import Record


def found(records: list[Record], rule: str) -> Finding | None:
    return next((finding for finding in summarise(records).findings if finding.rule == rule), None)


def on_cpu(model: str) -> dict[str, object]:
    return {"environment": {**ENVIRONMENT, "cpu": {"model": model}}, "identity": {"device_type": "cpu"}}


def test_cpus_of_different_models_are_unlike_devices() -> None:
    made = [record({"engine": engine}, **on_cpu(cpu)) for engine, cpu in (("ddp", "EPYC"), ("fsdp2", "Xeon"))]
    assert "1 run on EPYC and 1 run on Xeon" in (found(made, "unlike-devices") or Finding("", "note", "")).sentence
    assert found([record({"engine": e}, **on_cpu("EPYC")) for e in "ab"], "unlike-devices") is None


def test_a_study_resumed_on_another_machine_is_found_in_its_repeats() -> None:
    made = [record(repeat=r, identity={"device_names": (name,)}) for r, name in enumerate(("H200", "H200", "A100"))]
    finding = found(made, "unlike-repeats")
    assert finding is not None
    assert "devices: H200 and A100" in finding.sentence
    assert found(made, "unlike-devices") is not None


@pytest.mark.parametrize(
    ("key", "values"),
    [("data_source", ("digits", "cifar10")), ("train_images", (10, 20)), ("global_batch_size", (8, 9))],
)
def test_repeats_of_other_data_or_batch_are_found(key: str, values: tuple[object, object]) -> None:
    made = [record(repeat=r, identity={key: value}) for r, value in enumerate(values)]
    assert found(made, "unlike-repeats") is not None
    assert found([record(repeat=r, identity={key: values[0]}) for r in range(2)], "unlike-repeats") is None


def scaled(rate: float, runs: tuple[int, int], spread: float = 0.001) -> list[Record]:
    return [
        record({"world_size": n}, repeat=r, steps=[0.1 * n / speed * (1 + spread * r)] * 10)
        for n, speed, repeats in ((1, 1.0, runs[0]), (2, rate, runs[1]))
        for r in range(repeats)
    ]


@pytest.mark.parametrize(
    ("runs", "spread", "words"),
    [
        ((1, 1), 0.001, "each from single runs"),
        ((1, 3), 0.001, "beside a baseline that ran once"),
        ((3, 1), 0.001, "which ran once"),
        ((3, 3), 0.0, "identical runs"),
    ],
)
def test_a_point_above_linear_says_who_ran_once(runs: tuple[int, int], spread: float, words: str) -> None:
    finding = found(scaled(2.2, runs, spread), "super-linear")
    assert finding is not None
    assert finding.severity == "warning"
    assert words in finding.sentence


def test_rounding_is_not_above_linear() -> None:
    assert found(scaled(2 * (1 + 1e-12), (1, 1)), "super-linear") is None
    assert found(scaled(2 * (1 + 1e-6), (1, 1)), "super-linear") is not None
