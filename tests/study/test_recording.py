"""Records of cases: what is known without running, and what the worker adds."""

from __future__ import annotations

from typing import Any

import pytest

from vitscale.config.study import StudyConfig
from vitscale.launch.probe import DeviceFacts
from vitscale.results.record import Record
from vitscale.study.case import Outcome
from vitscale.study.expand import expand
from vitscale.study.machine import Machine
from vitscale.study.recording import Run, record_of

RESULT: dict[str, Any] = {
    "info": {"train_images": 5},
    "measurement": {"step_time_s": [1.0], "images": [128], "communication": {"seconds_per_update": 0.1}},
    "learning": None,
    "environment": {"cpu": {"model": "a CPU"}},
}


def made(
    outcome: Outcome, *, names: tuple[str, ...] = ("NVIDIA H200",) * 2, each: int | None = None, **base: Any
) -> Record:
    tree = {"model": {"num_classes": 10}, "train": {"micro_batch_size": 64}, "precision": {"compute": "bf16"}, **base}
    study = StudyConfig.model_validate(
        {
            "base": tree,
            "measure": {"updates": 20},
            "axes": {"world_size": [2]},
            "mode": "weak",
            "name": "s",
            "images_per_device": each,
        }
    )
    facts = DeviceFacts(len(names), names, (10**11,) * len(names), bf16=True, mps=False, rocm=False, torch_cuda="13")
    (case,) = expand(study, "cuda").cases
    return record_of(study, Run(case, 1, 7, case.config, ("a note",), True), Machine("cuda", facts, 8), outcome, "now")


def test_a_run_that_ended_well() -> None:
    record = made(Outcome("ok", 0, result=RESULT, seconds=9.0))
    assert (record.repeat, record.order, record.seconds, record.started_at) == (1, 7, 9.0, "now")
    assert (record.notes, record.equal_updates, record.mode, record.cause) == (("a note",), True, "weak", None)
    assert record.identity.device_names == ("NVIDIA H200", "NVIDIA H200")
    assert (record.identity.precision, record.identity.zero_stage) == ("bf16/bf16/bf16", None)
    assert record.identity.train_images == 5
    measured = record.measurement
    assert measured is not None
    assert measured.peak_flops == 2 * 989.4e12
    assert measured.flops_per_image is not None
    assert measured.communication.seconds_per_update == 0.1
    assert measured.communication.bytes_per_update == 2 * (
        record.identity.num_parameters or 0
    )  # bf16 x 2 G (n - 1) / n
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_unknown_hardware_has_no_peak() -> None:
    for names in (("NVIDIA H200", "NVIDIA Next"), ("NVIDIA Next",) * 2):
        record = made(Outcome("ok", 0, result=RESULT), names=names)
        assert record.measurement is not None
        assert record.measurement.peak_flops is None


def test_what_is_learnt_where_classes_are_not_known() -> None:
    record = made(Outcome("ok", 0, result=RESULT), model={"num_classes": None}, data={"source": "npz", "root": "a.npz"})
    assert record.identity.num_parameters is None
    assert record.identity.data_source == "npz:a.npz"
    assert record.measurement is not None
    assert record.measurement.communication.bytes_per_update is None


@pytest.mark.parametrize("kind", ["oom", "error", "timeout"])
def test_a_failure_keeps_its_cause_and_nothing_measured(kind: Any) -> None:
    record = made(Outcome(kind, 3, 1, "it broke", "last words", RESULT, 4.0))
    assert record.outcome == kind
    assert record.cause is not None
    assert record.cause.model_dump() == {
        "sentence": "it broke", "rank": 1, "exit_code": 3, "stderr_tail": "last words",
    }  # fmt: skip
    assert record.measurement is record.learning is record.environment is None
    assert record.identity.global_batch_size == 128
    assert record.seconds == 4.0


def test_a_skipped_case_took_no_time() -> None:
    record = made(Outcome("skipped", sentence="needs 4 GPUs"))
    assert (record.outcome, record.seconds) == ("skipped", None)
    assert record.cause is not None
    assert record.cause.sentence == "needs 4 GPUs"


def test_what_the_run_said_of_itself_reaches_the_record() -> None:
    result = {**RESULT, "info": {"train_images": 5, "notes": ["data.train_limit=8 changes nothing"]}}
    assert made(Outcome("ok", 0, result=result)).notes == ("a note", "data.train_limit=8 changes nothing")


def test_weak_scaling_over_fewer_images_than_asked_for_says_so() -> None:
    files = {"source": "npz", "root": "a.npz"}
    notes = made(Outcome("ok", 0, result=RESULT), each=4, data=files).notes
    assert "asks for 4 images per device, 8 in all, and the run had 5" in notes[1]
    result = {**RESULT, "info": {"train_images": 8}}
    assert made(Outcome("ok", 0, result=result), each=4, data=files).notes == ("a note",)
