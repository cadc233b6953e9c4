"""From a case and the outcome of its job to a Record. Pure and torch-free; closed forms are estimate's and hardware's.

In: a Case, an Outcome, what the worker saved. Out: a Record, for failures and skipped cases too: what was to be run
is known without running it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitscale.config.run import RunConfig
from vitscale.config.study import StudyConfig
from vitscale.errors import VitscaleError
from vitscale.estimate.communication import communication_of
from vitscale.estimate.vit import expected_classes, num_parameters, shape_of, training_flops
from vitscale.hardware import peak_flops
from vitscale.optim.schedule import peak_lr
from vitscale.results.record import Cause, Identity, Learning, Measurement, Record
from vitscale.study.case import Outcome
from vitscale.study.expand import Case, config_hash
from vitscale.study.machine import Machine


@dataclass(frozen=True)
class Run:
    """One repeat of a case, about to run or just run."""

    case: Case
    repeat: int
    order: int
    config: RunConfig
    notes: tuple[str, ...] = ()
    equal_updates: bool | None = None


def record_of(study: StudyConfig, run: Run, machine: Machine, outcome: Outcome, started_at: str | None) -> Record:
    """The record of one repeat that has ended, however it did."""
    result = outcome.result if outcome.kind == "ok" else None
    environment = result["environment"] if result else None
    return Record(
        study=study.name,
        study_hash=study.fingerprint(),
        mode=study.mode,
        fixed=study.fixed,
        case=run.case.name,
        axes=run.case.axes,
        repeat=run.repeat,
        order=run.order,
        outcome=outcome.kind,
        cause=None if outcome.kind == "ok" else _cause(outcome),
        seconds=outcome.seconds if outcome.kind != "skipped" else None,
        started_at=started_at,
        identity=identity_of(run.case, run.config, machine, result),
        measurement=_measurement(run, machine, result) if result else None,
        learning=Learning.model_validate(result["learning"]) if result and result["learning"] else None,
        equal_updates=run.equal_updates,
        config=run.config.model_dump(mode="json"),
        environment=environment,
        notes=(*run.notes, *_said(study, run, result)),
    )


def identity_of(case: Case, config: RunConfig, machine: Machine, result: dict[str, Any] | None) -> Identity:
    """What is run: known from the config, sharper where the run has said it."""
    parameters, _, sizes = _shape(config)
    decided = case.decisions
    known: dict[str, Any] = {"engine": config.parallel.engine, "zero_stage": config.parallel.zero_stage}
    if decided is not None:
        known = {
            "engine": decided.engine,
            "zero_stage": decided.zero_stage if decided.engine == "deepspeed" else None,
            "precision": "/".join(decided.precision),
            "compile": decided.fast.compile,
            "cuda_graph": decided.fast.cuda_graph,
            "lr": peak_lr(config.optim, decided.batch.global_batch_size),
            **decided.batch._asdict(),
        }
    return Identity(
        model=config.model.name,
        num_parameters=parameters,
        img_size=sizes[0],
        patch_size=sizes[1],
        world_size=case.world_size,
        nodes=case.nodes,
        devices_per_node=case.devices_per_node,
        device_names=_device_names(case, machine, result),
        device_type="cuda" if machine.device_type == "cuda" else "cpu",
        optimizer=config.optim.name,
        lr_scaling=config.optim.lr_scaling,
        warmup_updates=config.optim.warmup_updates,
        data_source=config.data.source if config.data.root is None else f"{config.data.source}:{config.data.root}",
        train_images=result["info"]["train_images"] if result else config.data.train_limit,
        config_hash=config_hash(config),
        **known,
    )


def _said(study: StudyConfig, run: Run, result: dict[str, Any] | None) -> list[str]:
    """What the run said of itself, and whether weak scaling had fewer images than the study asked for."""
    if result is None:
        return []
    notes, images = list(result["info"].get("notes", ())), result["info"]["train_images"]
    asked = (study.images_per_device or images) * (run.case.world_size if study.images_per_device else 1)
    if images != asked:
        notes.append(
            f"weak scaling asks for {study.images_per_device:,} images per device, {asked:,} in all, and the run had "
            f"{images:,}: the work per device is not the same in all cases"
        )
    return notes


def _cause(outcome: Outcome) -> Cause:
    return Cause(
        sentence=outcome.sentence or f"it ended with exit code {outcome.code}",
        rank=outcome.rank,
        exit_code=outcome.code,
        stderr_tail=outcome.stderr_tail,
    )


def _measurement(run: Run, machine: Machine, result: dict[str, Any]) -> Measurement:
    _, image_flops, _ = _shape(run.config)
    names = _device_names(run.case, machine, result)
    peaks = [peak_flops(name, run.config.precision.compute) for name in names]
    peak = None if None in peaks or not peaks else sum(peak for peak in peaks if peak is not None)
    measured = dict(result["measurement"])
    sent = communication_of(run.config, run.case.decisions) if run.case.decisions else None
    measured["communication"] = {**measured["communication"], **(sent._asdict() if sent else {})}
    return Measurement.model_validate({**measured, "flops_per_image": image_flops, "peak_flops": peak})


def _shape(config: RunConfig) -> tuple[int | None, int | None, tuple[int | None, int | None]]:
    """(parameters, training FLOPs per image, (img_size, patch_size)); None where the closed forms do not know."""
    classes = expected_classes(config.model, config.data)
    try:
        shape = shape_of(config.model, classes)
    except VitscaleError:  # the run itself says what is wrong with it
        return None, None, (None, None)
    return num_parameters(shape) if classes else None, training_flops(shape), (shape.img_size, shape.patch_size)


def _device_names(case: Case, machine: Machine, result: dict[str, Any] | None) -> tuple[str, ...]:
    if machine.device_type == "cuda":
        return machine.facts.cuda_names[: case.world_size]
    model = result["environment"]["cpu"]["model"] if result else None
    return (model,) * case.world_size if model else ()
