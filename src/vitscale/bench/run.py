"""Run a bench: every row in a fresh process group, one after the other, as records. The parent has no torch.

In: a RunConfig, a number of processes. Out: one Record per row and round, appended to OUT/records.jsonl, so that
`vitscale report` and `compare` read them as they read a study's.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitscale.bench.case import Case, Spec, cases, payload_of, spec_of
from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.errors import RunFolderError
from vitscale.estimate.vit import expected_classes, num_parameters, shape_of, training_flops
from vitscale.hardware import peak_flops
from vitscale.results.files import output_errors
from vitscale.results.record import RECORDS_FILE, Cause, Identity, Measurement, Record
from vitscale.results.records import RecordStore
from vitscale.study.case import Job, Outcome
from vitscale.study.expand import running_order
from vitscale.study.heartbeat import HANG_S
from vitscale.study.runner import run_job

ORDER_SEED = 0
OnRow = Callable[[int, int, Case, Outcome | None], None]
"""Called with (index, number of rows, row, None) before a row starts and with its Outcome when it has ended."""


@dataclass(frozen=True)
class Bench:
    """What is measured and for how long."""

    config: RunConfig
    world_size: int
    device_type: str
    device_names: tuple[str, ...]
    warmup: int
    updates: int
    trace: int
    rounds: int
    only: tuple[str, ...] = ()
    timeout_s: float = 900.0


def run_bench(bench: Bench, out: Path, on_row: OnRow | None = None) -> list[Record]:
    """Run all rows, round after round, each round shuffled anew; return their records, in the order of the rows.

    Raises RunFolderError if `out` holds records already: another bench's rows are not this one's.
    """
    check_out(out)
    config = _random_data(bench)
    decisions = decide(config, world_size=bench.world_size, device_type=bench.device_type)
    classes = expected_classes(config.model, config.data) or 1000
    spec = spec_of(config, decisions, classes)
    rows = cases(config, bench.world_size, bench.device_type, bench.only)
    plan = running_order(len(rows), bench.rounds, ORDER_SEED)
    made: dict[tuple[int, int], Record] = {}
    with _open_store(out) as store:
        for index, (place, number) in enumerate(plan):
            row = rows[place]
            if on_row:
                on_row(index, len(plan), row, None)
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            outcome = _run_row(bench, row, spec, out / "jobs" / f"{row.name}-r{number}")
            made[place, number] = record_of(bench, config, row, spec, outcome, number, index, started)
            store.append(made[place, number])
            if on_row:
                on_row(index, len(plan), row, outcome)
    return [made[key] for key in sorted(made)]


def check_out(out: Path) -> None:
    """Refuse a folder that holds records."""
    with output_errors(out, "name another --out"):
        if (out / RECORDS_FILE).exists():
            raise RunFolderError(f"{out} holds records already ({RECORDS_FILE}); name another --out")


def _open_store(out: Path) -> RecordStore:
    with output_errors(out, "name another --out"):
        return RecordStore(out / RECORDS_FILE)


def _random_data(bench: Bench) -> RunConfig:
    """The config over random images, in the peers' terms: AdamW, no clipping, no accumulation."""
    tree = bench.config.model_dump(mode="json")
    decisions = decide(bench.config, world_size=bench.world_size, device_type=bench.device_type)
    classes = expected_classes(bench.config.model, bench.config.data)
    tree["data"] = {"source": "synthetic", "synthetic_size": max(64, decisions.batch.global_batch_size)}
    tree["model"]["num_classes"] = classes or 1000
    batch = {"micro_batch_size": decisions.batch.micro_batch_size, "grad_accum_steps": 1, "global_batch_size": None}
    tree["train"] |= {"epochs": None, "max_updates": 10**6, **batch}
    tree["parallel"]["balance"] = "none"  # as the peers share
    tree["optim"] |= {"name": "adamw", "clip_grad": None, "ema_decay": None, "layer_decay": None}
    return build_config(tree)


def _run_row(bench: Bench, row: Case, spec: Spec, folder: Path) -> Outcome:
    lengths = {"warmup": bench.warmup, "updates": bench.updates, "trace": bench.trace}
    payload = payload_of(row, spec, device=bench.device_type, **lengths)
    job = Job(folder.name, "vitscale.bench.worker", payload, bench.world_size, bench.timeout_s, {}, row.problem, HANG_S)
    return run_job(job, folder)


def record_of(
    bench: Bench,
    config: RunConfig,
    row: Case,
    spec: Spec,
    outcome: Outcome,
    number: int,
    order: int,
    started: str,
) -> Record:
    """The record of one row."""
    shape = shape_of(config.model, spec.num_classes)
    result = outcome.result if outcome.kind == "ok" else None
    measurement = None
    if result is not None:
        peaks = [peak_flops(name, row.precision[0]) for name in bench.device_names]
        peak = sum(p for p in peaks if p is not None) if peaks and None not in peaks else None
        flops = {"flops_per_image": training_flops(shape), "peak_flops": peak}
        measurement = Measurement.model_validate({**result["measurement"], **flops})
    cause = Cause(
        sentence=outcome.sentence or outcome.kind,
        rank=outcome.rank,
        exit_code=outcome.code,
        stderr_tail=outcome.stderr_tail,
    )
    return Record(
        study="bench",
        case=f"{row.title} ({'/'.join(row.precision)})",
        axes={"who": row.title, "precision": "/".join(row.precision)},
        repeat=number,
        order=order,
        outcome=outcome.kind,
        cause=None if outcome.kind == "ok" else cause,
        seconds=outcome.seconds,
        started_at=started,
        identity=Identity(
            model=spec.model,
            num_parameters=num_parameters(shape),
            img_size=spec.img_size,
            patch_size=shape.patch_size,
            engine=row.who,
            zero_stage=row.zero_stage,
            world_size=bench.world_size,
            device_names=bench.device_names,
            device_type="cuda" if bench.device_type == "cuda" else "cpu",
            precision="/".join(row.precision),
            compile=row.compile,
            cuda_graph=row.cuda_graph,
            micro_batch_size=spec.micro_batch_size,
            grad_accum_steps=1,
            global_batch_size=spec.micro_batch_size * bench.world_size,
            optimizer="adamw",
            lr=spec.lr,
            data_source="synthetic",
        ),
        measurement=measurement,
        environment=result["environment"] if result else None,
        config=row.config,
    )
