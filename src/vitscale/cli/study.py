"""`vitscale study STUDY`: check, plan, run what is not done yet, and show the report. Loads no torch."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from vitscale.config.study import StudyConfig
    from vitscale.results.record import Record
    from vitscale.study.expand import Case
    from vitscale.study.machine import Machine
    from vitscale.study.study import Plan, Step


def study(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A packaged study's name, or the path of a YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="axes.KEY=[..], base.SECTION.KEY=.., measure.updates=.., repeats=.."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The study's folder. Default: runs/<study>.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small copy of the study: digits, a tiny model, minutes on a CPU.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cases and a time estimate, then end without running any.")
    ] = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="Default: CUDA where there is a GPU, else cpu.")
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="First prove that the study's engines make equal updates (vitscale verify).")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what ended out of memory, in a time-out or an error.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; refuse a folder that is not empty.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Run more than 1,000 runs without asking back.")] = False,
) -> int:
    """Measure a base run over axes (engine, world size, batch, ...), every case in fresh processes, and report.

    The same command goes on where it was stopped, even by kill -9. A case that runs out of memory, hangs or fails is a
    row of the report and does not end the study: the exit code is 0 when every case has been tried.

    Examples:

      vitscale study digits-demo
      vitscale study strong-scaling --quick
      vitscale study engine-shootout --dry-run
      vitscale study batch-sweep axes.micro_batch_size=[16,32] base.optim.lr=1e-3 --out runs/batch
      vitscale study my.yaml repeats=5 measure.updates=200 --prove
    """
    from rich.console import Console

    from vitscale.cli.unheard import go_on_unheard
    from vitscale.config.study import load_study
    from vitscale.results.run_folder import hold_run_folder
    from vitscale.study.expand import check_count, slug
    from vitscale.study.machine import this_machine
    from vitscale.study.study import check_study_folder

    _check_alone()
    config = load_study(study, overrides or [], quick=quick)
    check_count(config, yes=yes)
    machine = this_machine(device)
    folder = out or Path("runs") / ((slug(config.name) or "study") + "-quick" * quick)
    check_study_folder(folder, config, fresh=fresh)
    console = Console(highlight=False)
    plan = _plan(config, machine, folder, retry_failed)
    if dry_run:
        return _dry_run(plan, folder, console)
    _check_data(plan)  # what is wrong is said before a folder is made
    signal.signal(signal.SIGTERM, _stop)
    go_on_unheard()
    with hold_run_folder(folder):
        plan = _plan(config, machine, folder, retry_failed)  # under the lock: nobody else adds records now
        _run(plan, folder, console, prove=prove)
    return _report(folder, console)


def _check_alone() -> None:
    import os

    from vitscale.errors import ConfigError
    from vitscale.launch.detect import detect

    if outer := detect(os.environ):
        raise ConfigError(f"a study starts its own processes; run it once, and not inside {outer.launcher}")


def _plan(config: StudyConfig, machine: Machine, folder: Path, retry_failed: bool) -> Plan:
    from vitscale.study.study import plan_study, read_folder

    records, broken = read_folder(folder)
    return plan_study(config, machine, records, broken=broken, retry_failed=retry_failed)


def _check_data(plan: Plan) -> None:
    from vitscale.cli.preflight import check_model_and_data

    for case in plan.cases:
        if case.skip_reason is None:
            check_model_and_data(case.config)


def _stop(*_: object) -> None:
    from vitscale.errors import Stopped

    raise Stopped("stopped by SIGTERM between two runs; run the same command again to go on")


def _run(plan: Plan, folder: Path, console: Console, *, prove: bool) -> None:
    from vitscale.cli.study_proof import prove as prove_engines
    from vitscale.cli.study_proof import proved
    from vitscale.study.study import keep_study, run_study

    for line in _headline(plan, folder):
        console.print(line, markup=False, soft_wrap=True)
    if prove:
        keep_study(plan, folder)  # a proof that is stopped must not leave a folder that no study knows
        prove_engines(plan, folder, plan.machine.device_type, lambda line: console.print(line, markup=False))
    if not plan.todo and not plan.skipped:
        return
    with console.status("starting") as status:
        run_study(plan, folder, equal_updates=proved(folder), on_step=lambda step: _show(step, console, status))


def _headline(plan: Plan, folder: Path) -> list[str]:
    """What will be run, what is left of it, and what was dropped."""
    study, runnable = plan.study, sum(case.skip_reason is None for case in plan.cases)
    size = f"{_count(runnable, 'case')} x {_count(study.repeats, 'repeat')}"
    lines = [f"{study.name} ({_mode(study)}): {size} on {_where(plan)}, in {folder}"]
    done = plan.runs - len(plan.todo)
    lines += [f"{done} of {plan.runs} runs are done already"] if done else []
    lines += [f"{_time(plan)} to go"] if plan.todo else []
    lines += [f"note: {note}" for note in plan.notes]
    lines += [f"note: {case.name} is skipped: {case.skip_reason}" for case in plan.cases if case.skip_reason]
    if plan.broken:
        lines.append(
            f"note: {_count(plan.broken, 'broken line')} in the records, left by a crash; those runs run again"
        )
    return lines


def _mode(study: StudyConfig) -> str:
    if study.mode == "strong":
        return f"strong scaling, {'global' if study.fixed == 'global' else 'per-device'} batch fixed"
    return "weak scaling" if study.mode == "weak" else "grid"


def _where(plan: Plan) -> str:
    machine = plan.machine
    if machine.device_type == "cuda":
        names = sorted(set(machine.facts.cuda_names))
        return f"{machine.facts.cuda_devices} x {' and '.join(names)}"
    threads = "" if plan.threads is None else f", {_count(plan.threads, 'thread')} per process"
    return f"{_count(machine.cores, 'CPU core')}{threads}"


def _time(plan: Plan) -> str:
    from vitscale.observers.progress import span

    forecast = plan.forecast()
    text = span(plan.seconds_left(forecast))
    return f"about {text}" if forecast.measured else f"perhaps {text} (a guess: nothing of it has been timed here)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _show(step: Step, console: Console, status: Status) -> None:
    """A line for every run that has ended, and on a terminal the one that goes on."""
    from vitscale.observers.progress import span

    name = f"{step.case.name}, repeat {step.repeat}"
    if step.record is None:
        status.update(f"{step.done + 1} of {step.total}: {name}  (about {span(step.seconds_left)} left)")
        return
    left = f"  (about {span(step.seconds_left)} left)" if step.done < step.total else ""
    line = f"[{step.done}/{step.total}] {name}: {_ending(step.record)}{left}"
    console.print(line, markup=False, soft_wrap=True)


def _ending(record: Record) -> str:
    seconds = f"{record.seconds or 0:.0f} s"
    if record.outcome != "ok":
        return f"{record.outcome} after {seconds}: {' '.join(record.cause.sentence.split()) if record.cause else ''}"
    measured = record.measurement
    speed = (
        f", {sum(measured.images) / sum(measured.step_time_s):,.0f} images/s" if measured and measured.images else ""
    )
    learned = record.learning.final_accuracy if record.learning else None
    accuracy = (
        "" if learned is None or record.learning is None else f", {record.learning.split} top-1 {100 * learned:.1f} %"
    )
    return f"ok, {seconds}{speed}{accuracy}"


def _dry_run(plan: Plan, folder: Path, console: Console) -> int:
    from rich.table import Column, Table

    table = Table(
        Column("case", overflow="fold"),
        Column("processes", justify="right"),
        "micro x accum x processes = global batch",
        "runs",
    )
    left: dict[str, int] = {}
    for case, _ in plan.todo:
        left[case.name] = left.get(case.name, 0) + 1
    for case in plan.cases:
        table.add_row(case.name, str(case.world_size), _batch(case), _state(case, left.get(case.name, 0)))
    console.print(table)
    for note in (*plan.notes, *_missing_data(plan)):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(
        f"{_count(len(plan.todo), 'run')} to go on {_where(plan)}: {_time(plan)}; nothing was run", soft_wrap=True
    )
    console.print(f"folder: {folder}", markup=False, soft_wrap=True)
    return 0


def _missing_data(plan: Plan) -> list[str]:
    """What would stop the study now, said without stopping its estimate."""
    from vitscale.errors import VitscaleError

    try:
        _check_data(plan)
    except VitscaleError as error:
        return [f"it could not begin: {error}"]
    return []


def _batch(case: Case) -> str:
    if case.decisions is None:
        return ""
    micro, accum, total = case.decisions.batch
    return f"{micro} x {accum} x {case.world_size} = {total}"


def _state(case: Case, left: int) -> str:
    return f"skipped: {case.skip_reason}" if case.skip_reason else (f"{left} to go" if left else "done")


def _report(folder: Path, console: Console) -> int:
    """The table of what is there, and the page that explains it."""
    from vitscale.analysis.summarise import summarise
    from vitscale.errors import EXIT_OK
    from vitscale.report.files import write_report
    from vitscale.report.terminal import show
    from vitscale.results.records import read_study

    summary = summarise(*read_study(folder))
    console.print()
    show(summary, console)
    console.print(f"\nreport: {write_report(summary, folder)}", markup=False, soft_wrap=True)
    return EXIT_OK
