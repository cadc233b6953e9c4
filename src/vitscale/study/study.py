"""The parent of a study: a folder, a plan, and the loop that turns every planned run into a record. Torch-free.

In: a StudyConfig, this machine and a folder. Out: records appended to DIR/records.jsonl, one for each repeat of each
case, failures and skipped cases included. A run counts as done when its record is in the file: killed at any moment,
the same command goes on with what has none, and nothing is run or counted twice.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from vitscale.config.overrides import Tree
from vitscale.config.study import StudyConfig, dump_study, load_study
from vitscale.errors import ConfigError, Interrupted, RunFolderError, Stopped
from vitscale.results.files import write_atomically
from vitscale.results.record import RECORDS_FILE, Record
from vitscale.results.records import RecordStore, latest, read_records
from vitscale.results.run_folder import LOCK_FILE, check_folder
from vitscale.study import heartbeat
from vitscale.study.case import Job, Outcome
from vitscale.study.expand import Case, expand, running_order, train_images
from vitscale.study.forecast import Forecast
from vitscale.study.machine import Machine
from vitscale.study.recording import Run, record_of
from vitscale.study.runner import run_job

STUDY_FILE = "study.yaml"
JOBS = "jobs"
WORKER = "vitscale.study.worker"
LEAD_IN = 2  # updates that a trace throws away, as measure.meter has it, which needs torch
MIN_COUNTED = 20  # updates that a median should have


@dataclass(frozen=True)
class Plan:
    """What is left to do. todo: (case, repeat) in running order; skipped: cases that cannot run and have no record."""

    study: StudyConfig
    machine: Machine
    cases: tuple[Case, ...]
    notes: tuple[str, ...]
    records: tuple[Record, ...]
    broken: int
    todo: tuple[tuple[Case, int], ...]
    skipped: tuple[Case, ...]
    threads: int | None

    @property
    def runs(self) -> int:
        """Repeats of all cases that can run, done or not."""
        return sum(case.skip_reason is None for case in self.cases) * self.study.repeats

    def forecast(self) -> Forecast:
        """From the records that are there."""
        return Forecast(self.study, self.machine, self.cases, self.records)

    def seconds_left(self, forecast: Forecast, done: int = 0) -> float:
        """For what is to do, after the first `done` runs."""
        return sum(forecast.seconds(case) for case, _ in self.todo[done:])


class Step(NamedTuple):
    """Progress: a run begins (record None) or has ended. done and total count the runs of the whole study."""

    case: Case
    repeat: int
    done: int
    total: int
    seconds_left: float
    record: Record | None


OnStep = Callable[[Step], None]


def plan_study(
    study: StudyConfig,
    machine: Machine,
    records: Sequence[Record] = (),
    *,
    broken: int = 0,
    retry_failed: bool = False,
) -> Plan:
    """Plan what the records lack. Raises ConfigError if nothing of the study can run."""
    expansion = expand(study, machine.device_type)
    cases = tuple(
        case if case.skip_reason else replace(case, skip_reason=machine.problem(case)) for case in expansion.cases
    )
    if all(case.skip_reason for case in cases):
        hint = "; give --device cpu" if machine.lacks_devices(cases) else ""
        raise ConfigError(f"no case of this study can run here: {cases[0].name} {cases[0].skip_reason}{hint}")
    last = {(record.case, record.repeat): record.outcome for record in latest(records)}
    again = ("skipped", "oom", "timeout", "error") if retry_failed else ("skipped",)
    order = running_order(len(cases), study.repeats, study.order_seed)
    todo = [
        (cases[index], repeat)
        for index, repeat in order
        if cases[index].skip_reason is None and last.get((cases[index].name, repeat), "skipped") in again
    ]
    skipped = [case for case in cases if case.skip_reason and (case.name, 0) not in last]
    threads = machine.threads_as_before(cases, records) if todo else machine.threads(cases)
    notes = (*expansion.notes, *(note for case in cases for note in _few_updates(study, machine, case)))
    return Plan(study, machine, cases, notes, tuple(records), broken, tuple(todo), tuple(skipped), threads)


def _few_updates(study: StudyConfig, machine: Machine, case: Case) -> list[str]:
    """Whether whole epochs leave too few counted updates, where the size of the data set is known."""
    measure, data = study.measure, case.config.data
    images = train_images(data)
    if measure.epochs is None or images is None or case.skip_reason or case.decisions is None:
        return []
    each_epoch = math.ceil(min(images, data.train_limit or images) / case.decisions.batch.global_batch_size)
    traced = measure.trace_updates if machine.device_type == "cuda" or case.world_size > 1 else 0
    traced += LEAD_IN if traced else 0
    counted = max(0, measure.epochs * each_epoch - measure.warmup_updates - traced)
    if counted >= MIN_COUNTED:
        return []
    return [
        f"{case.name} counts {counted} updates at most, and fewer than {MIN_COUNTED} say little; raise "
        "measure.epochs, or lower measure.warmup_updates and measure.trace_updates"
    ]


def check_study_folder(folder: Path, study: StudyConfig, *, fresh: bool) -> None:
    """Refuse a folder that holds something else, or a study whose cases measure something else. Writes nothing."""
    check_folder(folder)
    others = [path for path in folder.iterdir() if path.name != LOCK_FILE] if folder.exists() else []
    if fresh and others:
        raise RunFolderError(f"--fresh needs an empty folder, and {folder} is not; name another --out, or delete it")
    if not others:
        return
    file = folder / STUDY_FILE
    if not file.is_file():
        raise RunFolderError(f"{folder} is not empty and holds no study (no {STUDY_FILE}); name another --out")
    try:
        stored = load_study(str(file))
    except ConfigError as error:
        raise RunFolderError(f"{file} is damaged ({error}); restore it, or name another --out") from None
    if stored.fingerprint() != study.fingerprint():
        key, was, now = _difference(stored.essence(), study.essence())
        raise RunFolderError(
            f"{folder} holds a study with {key}={was}, and this one has {key}={now}; only axes, repeats, order, "
            "time-outs and exclusions may change in a folder: name another --out"
        )


def read_folder(folder: Path) -> tuple[tuple[Record, ...], int]:
    """The records that are there so far, and how many lines a crash has left broken."""
    file = folder / RECORDS_FILE
    return read_records(file) if file.exists() else ((), 0)


def keep_study(plan: Plan, folder: Path) -> None:
    """Write the study's own file, by which the same command finds its folder again."""
    write_atomically(folder / STUDY_FILE, dump_study(plan.study))


def run_study(
    plan: Plan,
    folder: Path,
    *,
    equal_updates: Callable[[Case], bool | None] = lambda _: None,
    on_step: OnStep | None = None,
) -> None:
    """Run what the plan has to do; the caller holds the folder's lock.

    Raises Stopped at SIGTERM and Interrupted at Ctrl-C; the run that was going on then has no record.
    """
    keep_study(plan, folder)
    forecast, order = plan.forecast(), len(plan.records)
    with RecordStore(folder / RECORDS_FILE) as store:
        for case in plan.skipped:
            run = Run(case, 0, order, case.config)
            store.append(record_of(plan.study, run, plan.machine, Outcome("skipped", sentence=case.skip_reason), None))
            order += 1
        for done, run in enumerate(_runs(plan, order, equal_updates)):
            tell = _teller(plan, run, on_step, forecast)
            tell(done, None)
            try:
                record = _run(plan, run, folder)
            except (Stopped, KeyboardInterrupt) as error:
                here = plan.runs - len(plan.todo) + done
                kind, word = (Stopped, "stopped") if isinstance(error, Stopped) else (Interrupted, "interrupted")
                raise kind(
                    f"{word} with {here} of {plan.runs} runs done; run the same command again to go on"
                ) from None
            store.append(record)
            forecast.add(record)
            tell(done + 1, record)


def _runs(plan: Plan, order: int, equal_updates: Callable[[Case], bool | None]) -> Iterator[Run]:
    vary_seed = plan.study.measure.updates is None
    for place, (case, repeat) in enumerate(plan.todo):
        notes = plan.machine.notes(case, plan.threads)
        config = case.config_of(repeat, vary_seed=vary_seed)
        yield Run(case, repeat, order + place, config, notes, equal_updates(case))


def _run(plan: Plan, run: Run, folder: Path) -> Record:
    job = _job(plan, run)
    place = folder / JOBS / job.name
    shutil.rmtree(place, ignore_errors=True)  # of a try that was killed, or is made again
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    outcome = run_job(job, place)
    return record_of(plan.study, run, plan.machine, outcome, started_at)


def _job(plan: Plan, run: Run) -> Job:
    study = plan.study
    payload = {
        "config": run.config.model_dump(mode="json"),
        "measure": study.measure.model_dump(mode="json"),
        "memory_limit_gib": study.memory_limit_gib,
        "device": plan.machine.device_type,
    }
    env = {} if plan.threads is None else {"OMP_NUM_THREADS": str(plan.threads)}
    name = run.case.folder(run.repeat)
    return Job(name, WORKER, payload, run.case.world_size, study.timeout_s, env, hang_s=heartbeat.HANG_S)


def _teller(plan: Plan, run: Run, on_step: OnStep | None, forecast: Forecast) -> Callable[[int, Record | None], None]:
    before = plan.runs - len(plan.todo)

    def tell(done: int, record: Record | None) -> None:
        if on_step is not None:
            left = plan.seconds_left(forecast, done)
            on_step(Step(run.case, run.repeat, before + done, plan.runs, left, record))

    return tell


def _difference(a: Tree, b: Tree, prefix: str = "") -> tuple[str, object, object]:
    """The first key in which two trees differ, and both values."""
    keys: Iterable[str] = dict.fromkeys([*a, *b])
    key = next(key for key in keys if a.get(key) != b.get(key))
    was, now = a.get(key), b.get(key)
    if isinstance(was, dict) and isinstance(now, dict):
        return _difference(was, now, f"{prefix}{key}.")
    return f"{prefix}{key}", was, now
