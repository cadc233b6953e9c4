"""What a machine can run of a study, and how long it may take."""

from __future__ import annotations

from typing import Any

import pytest

import vitscale.study.machine as machine_module
from vitscale.config.study import StudyConfig
from vitscale.errors import DeviceError, RunFolderError
from vitscale.launch.probe import NO_DEVICES, DeviceFacts
from vitscale.results.record import Identity, Record
from vitscale.study.expand import Case, expand
from vitscale.study.forecast import Forecast
from vitscale.study.machine import Machine, this_machine

H200 = DeviceFacts(2, ("NVIDIA H200",) * 2, (141 * 10**9,) * 2, bf16=True, mps=False, rocm=False, torch_cuda="13.0")
CPU, GPU = Machine("cpu", NO_DEVICES, 2), Machine("cuda", H200, 16)


def study(**keys: Any) -> StudyConfig:
    base = {"data": {"source": "digits"}, "train": {"micro_batch_size": 16, "grad_accum_steps": 1}}
    return StudyConfig.model_validate({"base": base, "measure": {"updates": 20}, **keys})


def cases(**axes: list[Any]) -> tuple[Case, ...]:
    return expand(study(axes=axes)).cases


def test_more_processes_than_devices_cannot_run() -> None:
    two, four, nine = cases(world_size=[2, 4, 9])
    assert GPU.problem(two) is None
    assert GPU.problem(four) == "needs 4 GPUs, and this machine shows 2"
    assert CPU.problem(four) is None
    assert CPU.problem(nine) == "needs 9 processes, and this machine has 2 usable cores"
    assert Machine("cpu", NO_DEVICES, 32).problem(nine) is None


def test_several_nodes_cannot_run() -> None:
    (case,) = cases(nodes=[2])
    assert GPU.problem(case) == "needs 2 nodes, and a study starts its processes on one"


def test_deepspeed_that_is_not_installed_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ddp, deepspeed = cases(engine=["ddp", "deepspeed"], world_size=[2])
    assert GPU.problem(deepspeed) is None
    monkeypatch.setattr(machine_module, "find_spec", lambda _: None)
    assert GPU.problem(ddp) is None
    assert "pip install deepspeed" in str(GPU.problem(deepspeed))


def test_threads_follow_the_largest_case_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    sizes = cases(world_size=[1, 2, 4, 99])
    assert Machine("cpu", NO_DEVICES, 16).threads(sizes) == 4
    assert CPU.threads(sizes) == 1
    assert GPU.threads(sizes) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert CPU.threads(sizes) is None


def ran(threads: int | None, device_type: Any = "cpu", **keys: Any) -> Record:
    environment = None if threads is None else {"variables": {}, "torch_threads": {"intra_op": threads}}
    identity = Identity(world_size=1, device_type=device_type)
    return Record(study="s", case="c", identity=identity, environment=environment, **keys)


def test_what_is_added_to_a_folder_has_the_threads_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    eight, few, many = Machine("cpu", NO_DEVICES, 8), cases(world_size=[1, 2]), cases(world_size=[1, 2, 4])
    assert eight.threads_as_before(few, []) == 4
    assert eight.threads_as_before(few, [ran(None), ran(2)]) == 2  # a narrower axis must not give more
    with pytest.raises(RunFolderError, match=r"world_size=4 leaves 2 threads per process on 8 cores.*made with 4:"):
        eight.threads_as_before(many, [ran(4)])
    told = ran(4).model_copy(update={"environment": {"variables": {"OMP_NUM_THREADS": "2"}}})
    assert eight.threads_as_before(many, [told]) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert eight.threads_as_before(many, [told]) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(RunFolderError, match="made with 2 threads per process, and OMP_NUM_THREADS=3"):
        eight.threads_as_before(many, [told])


def test_a_folder_holds_one_kind_of_device() -> None:
    two = cases(world_size=[1, 2])
    with pytest.raises(RunFolderError, match="holds records of cpu runs, and this study would run on cuda"):
        GPU.threads_as_before(two, [ran(None, outcome="error")])
    assert GPU.threads_as_before(two, [ran(None, outcome="skipped"), ran(16, "cuda")]) is None


def test_the_record_says_what_shared_cores_mean() -> None:
    two, four = cases(world_size=[2, 4])
    assert CPU.notes(two, 1) == ("1 thread per process",)
    assert "4 processes share 2 cores" in CPU.notes(four, 2)[1]
    assert GPU.notes(four, None) == ()


@pytest.mark.parametrize(
    ("asked", "facts", "kind"),
    [(None, H200, "cuda"), ("cuda", H200, "cuda"), ("cpu", H200, "cpu"), (None, NO_DEVICES, "cpu")],
)
def test_the_kind_of_device(monkeypatch: pytest.MonkeyPatch, asked: str | None, facts: DeviceFacts, kind: str) -> None:
    monkeypatch.setattr(machine_module, "device_facts", lambda: facts)
    assert this_machine(asked).device_type == kind


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "device_facts", lambda: NO_DEVICES)
    with pytest.raises(DeviceError, match="no CUDA device"):
        this_machine("cuda")
    with pytest.raises(DeviceError, match="not one of cpu and cuda"):
        this_machine("mps")


# --- forecast -----------------------------------------------------------------------------------------------------


def record(case: str, seconds: float | None) -> Record:
    return Record(study="s", case=case, seconds=seconds, identity=Identity(world_size=1))


def test_a_case_that_has_run_takes_as_long_as_it_did() -> None:
    config = study(axes={"micro_batch_size": [8, 16]})
    both = expand(config, "cpu").cases
    forecast = Forecast(config, CPU, both)
    assert not forecast.measured
    guesses = [forecast.seconds(case) for case in both]
    assert 0 < guesses[0] < guesses[1]
    for seconds in (10.0, 12.0, 100.0, None):
        forecast.add(record("micro_batch_size=8", seconds))
    assert forecast.measured
    assert forecast.seconds(both[0]) == 12.0
    # The other is guessed to be off by as much as the first was.
    assert forecast.seconds(both[1]) == pytest.approx(guesses[1] * 12.0 / guesses[0])


def test_a_run_that_failed_early_teaches_no_length() -> None:
    config = study(axes={"micro_batch_size": [8, 16]})
    first = expand(config, "cpu").cases[0]
    forecast = Forecast(config, CPU, [first])
    guess = forecast.seconds(first)
    for outcome in ("error", "oom"):
        forecast.add(record(first.name, 0.5).model_copy(update={"outcome": outcome}))
    assert not forecast.measured
    assert forecast.seconds(first) == guess
    forecast.add(record(first.name, 1800.0).model_copy(update={"outcome": "timeout"}))
    assert forecast.seconds(first) == 1800.0


def test_guesses_grow_with_the_work() -> None:
    def guess(machine: Machine, **keys: Any) -> float:
        config = study(**keys)
        found = expand(config, machine.device_type).cases
        return Forecast(config, machine, found).seconds(found[0])

    assert guess(CPU, measure={"updates": 2000}) > 10 * guess(CPU)
    assert guess(CPU, measure={"epochs": 20}) > guess(CPU, measure={"epochs": 2})
    assert guess(GPU, measure={"updates": 2000}) < guess(CPU, measure={"updates": 2000})
    assert guess(CPU, axes={"engine": ["deepspeed"]}) > guess(CPU, axes={"engine": ["ddp"]})
    assert guess(CPU, axes={"compile": [True]}) > guess(CPU) + 30
