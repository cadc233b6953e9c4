"""The parent of a study with a worker that only pretends: every ending is a record, and a killed study goes on."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import vitscale.study.study as parent
from vitscale.config.study import StudyConfig, dump_study, load_study, studies
from vitscale.errors import ConfigError, RunFolderError
from vitscale.launch.probe import NO_DEVICES, DeviceFacts
from vitscale.results.record import RECORDS_FILE, Record
from vitscale.results.records import read_records
from vitscale.study.machine import Machine
from vitscale.study.study import Step, check_study_folder, plan_study, read_folder, run_study

HERE = Path(__file__).parent
SOURCE = Path(parent.__file__).parents[2]
MACHINE = Machine("cpu", NO_DEVICES, 2)
BASE = {
    "model": {"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "in_chans": 1},
    "data": {"source": "digits"},
    "optim": {"lr": 1.0},
    "train": {"micro_batch_size": 16, "grad_accum_steps": 1},
}


def study(**keys: Any) -> StudyConfig:
    defaults = {"base": BASE, "measure": {"updates": 20}, "axes": {"lr": [1.0, 1.5]}, "repeats": 2, "timeout_s": 30}
    return StudyConfig.model_validate({**defaults, **keys})


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pretended workers write a line for every run that ended well."""
    monkeypatch.setattr(parent, "WORKER", "case_worker")
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{SOURCE}")
    monkeypatch.setenv("CASE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def run(folder: Path, config: StudyConfig, **options: Any) -> list[Record]:
    check_study_folder(folder, config, fresh=False)
    records, broken = read_folder(folder)
    plan = plan_study(config, MACHINE, records, broken=broken, retry_failed=options.pop("retry_failed", False))
    folder.mkdir(exist_ok=True)
    run_study(plan, folder, **options)
    return list(read_records(folder)[0])


def counts(records: list[Record]) -> Counter[tuple[str, int]]:
    return Counter((record.case, record.repeat) for record in records)


def test_every_repeat_of_every_case_is_a_record(tmp_path: Path, log: Path) -> None:
    steps: list[Step] = []
    records = run(tmp_path / "study", study(), on_step=steps.append, equal_updates=lambda case: case.name == "lr=1.0")
    assert counts(records) == {(case, repeat): 1 for case in ("lr=1.0", "lr=1.5") for repeat in (0, 1)}
    assert [record.order for record in records] == [0, 1, 2, 3]
    assert [record.repeat for record in records] == [0, 0, 1, 1]
    first = records[0]
    assert (first.outcome, first.cause, first.study, first.mode) == ("ok", None, "study", "grid")
    assert first.seconds is not None
    assert first.started_at is not None
    assert first.equal_updates == (first.case == "lr=1.0")
    assert first.config is not None
    assert first.environment == {"cpu": {"model": "a CPU"}, "devices": []}
    assert first.measurement is not None
    assert math.isnan(first.measurement.losses[0])
    assert first.measurement.communication.bytes_per_update == 0
    assert first.measurement.flops_per_image
    assert first.learning is not None
    assert first.learning.points[0].accuracy == 0.5
    assert [step.done for step in steps] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [step.record and step.record.case for step in steps[1::2]] == [record.case for record in records]
    assert all(step.record is None and step.total == 4 for step in steps[::2])
    assert steps[0].seconds_left > 40  # a guess of 10 s and more for each, until the pretended ones have been timed
    assert steps[-2].seconds_left < 5
    assert steps[-1].seconds_left == 0
    assert len(log.read_text().splitlines()) == 4


def test_the_identity_says_what_was_run(tmp_path: Path, log: Path) -> None:
    config = study(axes={"engine": ["deepspeed:2"], "world_size": [2]}, repeats=1, mode="weak")
    identity = run(tmp_path / "study", config)[0].identity
    known = identity.model_dump(exclude={"config_hash", "num_parameters"})
    assert known == {
        "model": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "engine": "deepspeed", "zero_stage": 2,
        "world_size": 2, "nodes": 1, "devices_per_node": 2, "device_names": ("a CPU", "a CPU"), "device_type": "cpu",
        "precision": "fp32/fp32/fp32", "compile": False, "cuda_graph": False, "micro_batch_size": 16,
        "grad_accum_steps": 1, "global_batch_size": 32, "optimizer": "adamw", "lr": 1.0, "lr_scaling": "none",
        "warmup_updates": 0, "data_source": "digits", "train_images": 1438,
    }  # fmt: skip
    assert identity.num_parameters == 5_345_098  # as timm makes it


def test_failures_are_records_with_their_cause_and_the_study_goes_on(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent.heartbeat, "HANG_S", 2.0)
    config = study(axes={"lr": [1.0, 2.0, 3.0, 4.0, 5.0], "world_size": [2, 16]}, repeats=1)
    began = time.monotonic()
    records = {record.case: record for record in run(tmp_path / "study", config)}
    assert time.monotonic() - began < 80
    assert [records[f"lr={kind} world_size=2"].outcome for kind in (1.0, 2.0, 3.0, 4.0, 5.0)] == [
        "ok", "oom", "error", "timeout", "error",
    ]  # fmt: skip
    causes = {kind: records[f"lr={kind}.0 world_size=2"].cause for kind in (2, 3, 4, 5)}
    assert causes[3] is not None
    assert (causes[3].rank, causes[3].exit_code, causes[3].sentence) == (1, 2, "file 3 is damaged")
    assert causes[3].stderr_tail == "about to fail"
    assert causes[4] is not None
    assert causes[4].rank == 1
    assert "rank 1 hung in phase forward of update 4" in causes[4].sentence
    assert "case_worker.py" in causes[4].stderr_tail  # the stacks
    assert causes[5] is not None
    assert causes[5].rank == 1
    assert "killed by SIGKILL" in causes[5].sentence
    skipped = records["lr=1.0 world_size=16"]
    assert skipped.outcome == "skipped"
    assert skipped.cause is not None
    assert skipped.cause.sentence == "needs 16 processes, and this machine has 2 usable cores"
    assert len(records) == 10


def test_what_is_done_is_not_run_again(tmp_path: Path, log: Path) -> None:
    run(tmp_path / "study", study())
    records = run(tmp_path / "study", study())
    assert len(records) == len(log.read_text().splitlines()) == 4


def test_a_study_can_grow_in_its_folder(tmp_path: Path, log: Path) -> None:
    run(tmp_path / "study", study(repeats=1))
    records = run(tmp_path / "study", study(axes={"lr": [1.0, 1.5, 1.7]}, repeats=2))
    assert counts(records) == {(f"lr={lr}", repeat): 1 for lr in (1.0, 1.5, 1.7) for repeat in (0, 1)}
    assert [record.order for record in records] == list(range(6))


def test_failed_runs_are_tried_again_only_if_asked_to(tmp_path: Path, log: Path) -> None:
    config = study(axes={"lr": [1.0, 2.0]}, repeats=1)
    run(tmp_path / "study", config)
    assert len(run(tmp_path / "study", config)) == 2
    records = run(tmp_path / "study", config, retry_failed=True)
    assert counts(records) == {("lr=1.0", 0): 1, ("lr=2.0", 0): 2}


def test_a_cut_last_line_is_run_again_and_nothing_else(tmp_path: Path, log: Path) -> None:
    run(tmp_path / "study", study())
    file = tmp_path / "study" / RECORDS_FILE
    file.write_bytes(file.read_bytes()[:-40])
    assert read_folder(tmp_path / "study")[1] == 1
    records = run(tmp_path / "study", study())
    assert counts(records) == {(case, repeat): 1 for case in ("lr=1.0", "lr=1.5") for repeat in (0, 1)}
    assert len(log.read_text().splitlines()) == 5


def test_cases_that_can_run_on_a_larger_machine_are_no_longer_skipped(tmp_path: Path, log: Path) -> None:
    config = study(axes={"world_size": [1, 12]}, repeats=1)
    records = run(tmp_path / "study", config)
    assert [(record.outcome, record.order) for record in records] == [("skipped", 0), ("ok", 1)]
    assert len(run(tmp_path / "study", config)) == 2
    plan = plan_study(config, Machine("cpu", NO_DEVICES, 16), records)
    assert [case.name for case, _ in plan.todo] == ["world_size=12"]


PARENT = """
import sys
from pathlib import Path
import vitscale.study.study as parent
from vitscale.config.study import load_study
from vitscale.launch.probe import NO_DEVICES
from vitscale.results.run_folder import hold_run_folder
from vitscale.study.machine import Machine
parent.WORKER = "case_worker"
folder, config = Path(sys.argv[1]), load_study(sys.argv[2])
with hold_run_folder(folder):
    records, broken = parent.read_folder(folder)
    parent.run_study(parent.plan_study(config, Machine("cpu", NO_DEVICES, 2), records, broken=broken), folder)
"""


def test_killed_at_any_moment_it_completes_and_counts_right(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASE_SECONDS", "0.15")
    file, folder = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(dump_study(study(axes={"lr": [1.0, 1.1, 1.2]}, repeats=3)))
    command = [sys.executable, "-c", PARENT, str(folder), str(file)]
    for done in (1, 3, 6):
        process = subprocess.Popen(command)
        wait_for_records(folder, done)
        time.sleep(0.2)  # in the middle of the next run, or of its start
        assert process.poll() is None
        process.kill()
        process.wait()
    assert subprocess.run(command, check=False).returncode == 0
    records, broken = read_records(folder)
    assert counts(list(records)) == {(f"lr={lr}", repeat): 1 for lr in (1.0, 1.1, 1.2) for repeat in range(3)}
    assert broken == 0
    assert {record.outcome for record in records} == {"ok"}
    assert not living_workers(folder)


def wait_for_records(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_folder(folder)[0]) < number and time.monotonic() < deadline:
        time.sleep(0.02)


def living_workers(folder: Path) -> list[str]:
    deadline = time.monotonic() + 5
    while True:
        done = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
        found = [line for line in done.stdout.splitlines() if "case_worker" in line and str(folder) in line]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


COMMAND = """
import sys
import vitscale.study.study as parent
from vitscale.cli.main import run
parent.WORKER = "case_worker"
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_stops_it_and_the_same_command_goes_on(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, signum: int, code: int
) -> None:
    monkeypatch.setenv("CASE_SECONDS", "0.5")
    file, folder = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(dump_study(study()))
    command = [sys.executable, "-c", COMMAND, "study", str(file), "--device", "cpu", "--out", str(folder)]
    reset = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731 - ignored in the background
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=reset)
    wait_for_records(folder, 1)
    time.sleep(0.3)
    first.send_signal(signum)
    _, said = first.communicate(timeout=30)
    assert first.returncode == code
    assert said.count("\n") == 1
    assert said.startswith(f"error: {'stopped' if signum == signal.SIGTERM else 'interrupted'} with ")
    assert "of 4 runs done; run the same command again to go on" in said
    assert not living_workers(folder)
    assert len(read_folder(folder)[0]) < 4
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs are done already" in done.stdout
    assert set(counts(list(read_records(folder)[0])).values()) == {1}
    assert (folder / "report.html").is_file()


def test_a_reader_that_leaves_does_not_end_it(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASE_SECONDS", "0.1")
    file, folder = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(dump_study(study()))
    command = [sys.executable, "-c", COMMAND, "study", str(file), "--device", "cpu", "--out", str(folder)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.readline()
    run.stdout.close()
    with run.stderr:
        assert run.stderr.read() == ""
    assert run.wait(timeout=60) == 0
    assert len(read_folder(folder)[0]) == 4
    assert (folder / "report.html").is_file()


def test_a_second_study_in_the_folder_is_refused(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASE_SECONDS", "30")
    file, folder = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(dump_study(study()))
    command = [sys.executable, "-c", PARENT, str(folder), str(file)]
    first = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 20
        while not (folder / parent.JOBS).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert second.returncode == 1
    assert f"is in use by process {first.pid}" in second.stderr
    assert not living_workers(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base": {**BASE, "optim": {"lr": 7.0}}}, "base.optim.lr=1.0, and this one has base.optim.lr=7.0"),
        ({"measure": {"updates": 21}}, "measure.updates=20, and this one has measure.updates=21"),
        ({"mode": "weak", "axes": {"world_size": [1]}}, "mode=grid"),
    ],
)
def test_another_study_in_the_folder_is_refused(tmp_path: Path, log: Path, change: dict[str, Any], words: str) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / parent.STUDY_FILE).write_text(dump_study(study()))
    check_study_folder(folder, study(), fresh=False)
    with pytest.raises(RunFolderError, match=words):
        check_study_folder(folder, study(**change), fresh=False)
    with pytest.raises(RunFolderError, match="--fresh needs an empty folder"):
        check_study_folder(folder, study(), fresh=True)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="holds no study"):
        check_study_folder(tmp_path, study(), fresh=False)


def test_a_study_of_which_nothing_can_run_here_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no case of this study can run here: world_size=99 needs 99 processes"):
        plan_study(study(axes={"world_size": [99]}), MACHINE)


def test_too_few_gpus_for_every_case_point_at_the_cpu() -> None:
    one = DeviceFacts(1, ("NVIDIA H200",), (10**11,), bf16=True, mps=False, rocm=False, torch_cuda="13")
    with pytest.raises(ConfigError, match="world_size=2 needs 2 GPUs, and this machine shows 1; give --device cpu"):
        plan_study(study(axes={"world_size": [2, 4]}), Machine("cuda", one, 8))
    with pytest.raises(ConfigError, match=r"usable cores$"):
        plan_study(study(axes={"world_size": [99]}), MACHINE)


@pytest.mark.parametrize("name", [recipe.name for recipe in studies() if recipe.name != "digits-demo"])
def test_a_quick_study_runs_on_one_gpu_and_counts_enough(name: str) -> None:
    one = DeviceFacts(1, ("NVIDIA H200",), (10**11,), bf16=True, mps=False, rocm=False, torch_cuda="13")
    for machine in (Machine("cuda", one, 8), MACHINE):
        assert not [note for note in plan_study(load_study(name, quick=True), machine).notes if "say little" in note]


def test_epochs_that_leave_few_counted_updates_are_warned_of() -> None:
    def warned(**measure: Any) -> tuple[str, ...]:
        return plan_study(study(axes={"micro_batch_size": [16, 360]}, measure=measure), MACHINE).notes

    (note,) = warned(epochs=5, warmup_updates=1)  # of 360 there are 4 updates an epoch
    assert note.startswith("micro_batch_size=360 counts 19 updates at most, and fewer than 20 say little")
    assert warned(epochs=5, warmup_updates=0) == ()
    grouped = study(axes={"world_size": [2]}, base={**BASE, "train": {"micro_batch_size": 180}}, measure={"epochs": 8})
    assert "counts 10 updates" in plan_study(grouped, MACHINE).notes[0]  # 32, without warm-up and trace


def test_a_study_of_another_kind_of_device_is_refused_in_the_folder_unless_all_is_done(
    tmp_path: Path, log: Path
) -> None:
    config = study(axes={"world_size": [1]}, repeats=1)
    records = run(tmp_path / "study", config)
    one = DeviceFacts(1, ("NVIDIA H200",), (10**11,), bf16=True, mps=False, rocm=False, torch_cuda="13")
    gpu = Machine("cuda", one, 8)
    assert plan_study(config, gpu, records).todo == ()
    with pytest.raises(RunFolderError, match="holds records of cpu runs"):
        plan_study(config.model_copy(update={"repeats": 2}), gpu, records)


def test_processes_on_a_cpu_have_equally_many_threads_in_all_cases(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = plan_study(study(axes={"world_size": [1, 2, 4]}), Machine("cpu", NO_DEVICES, 8))
    assert plan.threads == 2
    records = run(tmp_path / "study", study(axes={"world_size": [1, 2]}, repeats=1))
    for record in records:
        (file,) = (tmp_path / "study" / "jobs").glob(f"world_size={record.identity.world_size}-*/result.json")
        assert json.loads(file.read_text())["info"]["threads"] == "1"
        assert record.notes == ("1 thread per process",)
