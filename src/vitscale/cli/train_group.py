"""The parent of a training: starts the ranks, ends them when one hangs, and starts them again if that was asked for.

In: a Plan and its config file. Out: an exit code, or the error that ended the last attempt. Torch-free.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from vitscale.cli.preflight import Plan
    from vitscale.launch.local import Group
    from vitscale.launch.outcome import GroupOutcome
    from vitscale.study.runner import Watch

RANK_MODULE = "vitscale.study.rank"
PAUSE_S = 2.0  # before a new start: a device that a dead process held is not free at once


def train_in_group(plan: Plan, folder: Path, *, fresh: bool, restarts: int, hang_s: float) -> int:
    """Train with `plan.decisions.world_size` ranks. After a failure that a new start may cure (a rank died, hung or
    failed for an unknown reason), start again from the last checkpoint, up to `restarts` times, with the same global
    batch: on the GPUs that are left, if some have gone."""

    for attempt in range(restarts + 1):
        outcome = _run(plan, folder / f"attempt{attempt}", fresh=fresh and attempt == 0, hang_s=hang_s)
        if outcome.sentence is None:
            return outcome.exit_code
        _show_tail(outcome)
        if not outcome.curable or attempt == restarts:
            break
        typer.echo(f"note: {outcome.sentence}; restart {attempt + 1} of {restarts} {_from_where(plan.out)}", err=True)
        time.sleep(PAUSE_S)
        plan = on_what_is_left(plan)
    raise _error_of(outcome)


def _run(plan: Plan, folder: Path, *, fresh: bool, hang_s: float) -> GroupOutcome:
    from vitscale.config.load import dump_config
    from vitscale.launch.local import start_group
    from vitscale.study.heartbeat import HangWatch
    from vitscale.study.runner import Watch

    folder.mkdir()
    config_file, log_dir = folder / "config.yaml", folder / "ranks"
    config_file.write_text(dump_config(plan.config))
    args = ["--config", str(config_file), "--out", str(plan.out), "--device", plan.device]
    args += ["--fresh"] if fresh else []
    nproc = plan.decisions.world_size
    watch = Watch(HangWatch(log_dir, nproc, hang_s=hang_s))
    with start_group(RANK_MODULE, args, nproc, log_dir=log_dir, show_output_of_rank0=True) as group:
        if group.wait(give_up=watch):
            return group.outcome()
        return _hung(group, watch, log_dir)


def _hung(group: Group, watch: Watch, log_dir: Path) -> GroupOutcome:
    from vitscale.errors import EXIT_RUN_FAILED
    from vitscale.launch.outcome import GroupOutcome, stderr_tail
    from vitscale.study.runner import left_over

    assert watch.hang is not None
    group.dump_stacks()
    group.terminate()
    if group.stopped_by is not None:
        return group.outcome()
    hang = watch.hang
    sentence = f"{hang.sentence()}; --hang-limit allows longer pauses{left_over(group.unended)}"
    tail = stderr_tail(log_dir, hang.rank)
    return GroupOutcome(EXIT_RUN_FAILED, hang.rank, sentence, tail, "error", curable=not group.unended)


def on_what_is_left(plan: Plan) -> Plan:
    """The plan for the GPUs that can still be seen, with the same global batch; itself if none has gone.

    Raises DeviceError if no number of them divides that batch.
    """
    from vitscale.config.decide import decide
    from vitscale.errors import ConfigError, DeviceError
    from vitscale.launch.probe import device_facts

    wanted = plan.decisions.world_size
    if plan.device != "cuda":
        return plan
    facts = device_facts(fresh=True)
    if facts.cuda_devices >= wanted:
        return plan
    batch = plan.decisions.batch
    for number in range(facts.cuda_devices, 0, -1):
        keys = {"global_batch_size": batch.global_batch_size, "micro_batch_size": batch.micro_batch_size}
        train = plan.config.train.model_copy(update={**keys, "grad_accum_steps": None})
        config = plan.config.model_copy(update={"train": train})
        try:
            decisions = decide(config, world_size=number, device_type=plan.device)
        except ConfigError:
            continue
        typer.echo(
            f"note: {facts.cuda_devices} of {wanted} GPUs are left; going on with {number}, "
            f"train.grad_accum_steps={decisions.batch.grad_accum_steps} and the same global batch of "
            f"{batch.global_batch_size}",
            err=True,
        )
        return replace(plan, config=config, decisions=decisions, facts=facts)
    raise DeviceError(
        f"{facts.cuda_devices} of {wanted} GPUs are left, and no number of them makes the global batch of "
        f"{batch.global_batch_size} from micro-batches of {batch.micro_batch_size}"
    )


def _from_where(out: Path) -> str:
    last = max((file.parent.name for file in (out / "checkpoints").glob("update-*/manifest.json")), default=None)
    return "begins anew" if last is None else f"goes on from update {int(last.removeprefix('update-'))}"


def _show_tail(outcome: GroupOutcome) -> None:
    """Show the last lines of a rank other than 0, whose stderr nobody has seen."""
    from vitscale.errors import EXIT_RUN_FAILED

    if outcome.exit_code == EXIT_RUN_FAILED and outcome.rank and outcome.stderr_tail:
        print(f"rank {outcome.rank}'s last lines:\n{outcome.stderr_tail}", file=sys.stderr)


def _error_of(outcome: GroupOutcome) -> BaseException:
    from vitscale.errors import EXIT_INTERRUPTED, VitscaleError

    if outcome.exit_code == EXIT_INTERRUPTED:
        return KeyboardInterrupt()
    error = VitscaleError(outcome.sentence)
    error.exit_code = outcome.exit_code
    return error
