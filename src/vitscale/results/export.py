"""Records for other programs: CSV, parquet, and log lines in the style of MLPerf's. Torch-free.

In: Records. Out: a file, written whole or not at all. CSV and parquet have one row per record; parquet keeps the raw
values per update as lists, CSV leaves them to records.jsonl. The log lines follow the form of MLCommons' mllog (one
JSON object after ':::MLLOG'); they make no submission.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, get_args

from vitscale.errors import ConfigError
from vitscale.results.files import output_errors, whole_file, write_atomically
from vitscale.results.rates import images_per_s, step_time_s
from vitscale.results.record import PHASES, DeviceState, Identity, Measurement, Record

_PHASES = (*PHASES, "step")
_RAW = ("warmup_step_time_s", "step_time_s", "images", "losses", "data_wait_s")
_WHOLE = ("repeat", "order", "rank", "exit_code", "updates", "epochs", "recompiles", "skipped_updates")
_TRUTH = ("equal_updates", "throttled", "epochs_include_warmup")
_REAL = ("_s", "seconds", "accuracy", "target", "_j", "_w", "_c", "_mhz", "flops", "flops_per_image")
_IDENTITY = tuple(name for name in Identity.model_fields if name != "config_hash")


def export_records(records: Sequence[Record], path: Path) -> None:
    """Write the records in the form that the file's ending names."""
    if (write := _WRITERS.get(path.suffix)) is None:
        raise ConfigError(f"{path.name}: nothing here writes '{path.suffix}'; known are {', '.join(_WRITERS)}")
    with output_errors(path, "give --export a path that can be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(records, path)


def table(records: Sequence[Record]) -> tuple[list[str], list[dict[str, Any]]]:
    """Column names and rows without raw values. An axis that is no column already gets its own, axis.NAME."""
    rows = [_row(record) for record in records]
    return list(dict.fromkeys(name for row in rows for name in row)), rows


def write_csv(records: Sequence[Record], path: Path) -> None:
    """One line per record; nothing where a value is not known."""
    names, rows = table(records)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    write_atomically(path, text.getvalue())


def _harmless(cell: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(("=", "+", "-", "@")) else cell


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """One row per record, raw values as lists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names, rows = table(records)
    columns = {name: [row.get(name) for row in rows] for name in names}
    arrays = {name: pa.array(_one_type(values), type=_parquet_type(name)) for name, values in columns.items()}
    for name in _RAW:
        kind = pa.list_(pa.int64() if name == "images" else pa.float64())
        raw = [list(getattr(record.measurement, name)) if record.measurement else None for record in records]
        arrays[name] = pa.array(raw, type=kind)
    with whole_file(path) as temporary:
        pq.write_table(pa.table(arrays), temporary)


def write_mllog(records: Sequence[Record], path: Path) -> None:
    """Log lines of all records, one run after the other."""
    events = (
        event for record in records for event in _events(record) if event["value"] is not None or "run" in event["key"]
    )
    lines = [f":::MLLOG {json.dumps(event, allow_nan=False)}" for event in events]
    write_atomically(path, "\n".join(lines) + "\n")


_WRITERS: dict[str, Callable[[Sequence[Record], Path], None]] = {
    ".csv": write_csv,
    ".parquet": write_parquet,
    ".log": write_mllog,
}


def _row(record: Record) -> dict[str, Any]:
    identity = record.identity.model_dump()
    axes = {name if name in _IDENTITY else f"axis.{name}": value for name, value in record.axes.items()}
    row: dict[str, Any] = {
        "study": record.study,
        "case": record.case,
        "repeat": record.repeat,
        "order": record.order,
        "mode": record.mode,
        "fixed": record.fixed,
        "outcome": record.outcome,
        "cause": record.cause.sentence if record.cause else None,
        "rank": record.cause.rank if record.cause else None,
        "exit_code": record.cause.exit_code if record.cause else None,
        "started_at": record.started_at,
        "seconds": record.seconds,
        "source": record.source,
        **{name: identity[name] for name in _IDENTITY},
        "device_names": "; ".join(record.identity.device_names) or None,
        **{name: value for name, value in axes.items() if name.startswith("axis.")},
        "median_step_time_s": step_time_s(record),
        "images_per_s": images_per_s(record),
        **_figures(record.measurement),
        **_epochs(record),
        **_learned(record),
        "equal_updates": record.equal_updates,
        "notes": "; ".join(record.notes) or None,
    }
    return row


def _epochs(record: Record) -> dict[str, Any]:
    times = record.epoch_times
    return {
        "epoch_time_s": times.mean_s if times else None,
        "epoch_time_min_s": times.min_s if times else None,
        "epoch_time_max_s": times.max_s if times else None,
        "epochs": times.epochs if times else None,
        "epochs_include_warmup": times.includes_warmup if times else None,
    }


def _learned(record: Record) -> dict[str, Any]:
    """The evaluations on the way are one cell of JSON, since a row is a run."""
    learning = record.learning
    points = [point.model_dump() for point in learning.points] if learning else []
    return {
        "accuracy": learning.final_accuracy if learning else None,
        "accuracy_split": learning.split if learning else None,
        "target": learning.target if learning else None,
        "learning_points": json.dumps(points) if points else None,
    }


def _devices(states: Sequence[DeviceState]) -> dict[str, Any]:
    """Energy of all GPUs together; medians over GPUs of the rest."""

    def known(name: str) -> list[float]:
        return [value for state in states if (value := getattr(state, name)) is not None]

    energy, throttled = known("energy_j"), known("throttled")
    middles = {
        name: median(known(name)) if known(name) else None
        for name in ("power_w", "sm_clock_mhz", "memory_clock_mhz", "temperature_c")
    }
    return {
        "energy_j": sum(energy) if energy and len(energy) == len(states) else None,
        **middles,
        "throttled": any(throttled) if throttled else None,
    }


def _figures(measurement: Measurement | None) -> dict[str, Any]:
    m = measurement or Measurement()
    seconds = m.attribution.seconds if m.attribution else {}
    return {
        "updates": len(m.step_time_s),
        "flops_per_image": m.flops_per_image,
        "peak_flops": m.peak_flops,
        "recompiles": m.recompiles,
        "skipped_updates": m.skipped_updates if measurement else None,
        **_devices(m.device_state),
        "peak_allocated_bytes": max(m.peak_allocated_bytes, default=None),
        "peak_reserved_bytes": max(m.peak_reserved_bytes, default=None),
        "peak_rss_bytes": max(m.peak_rss_bytes, default=None),
        **{f"traced_{phase}_s": seconds.get(phase) for phase in _PHASES},
        "communication_bytes_per_update": m.communication.bytes_per_update,
    }


def _parquet_type(name: str) -> Any:
    """The same for every study, even where a column is empty; None: an axis, as its values are."""
    import pyarrow as pa

    if name.startswith("axis."):
        return None
    field = Identity.model_fields.get(name)
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if field is not None:
        return next((kinds[kind] for kind in (bool, int, float) if kind in _members(field.annotation)), pa.string())
    if name in _TRUTH:
        return pa.bool_()
    if name in _WHOLE or "_bytes" in name:
        return pa.int64()
    return pa.float64() if name.endswith(_REAL) else pa.string()


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) or (annotation,)


def _one_type(values: list[Any]) -> list[Any]:
    """A column has one type: numbers become floats together, anything else mixed becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _events(record: Record) -> Iterator[dict[str, Any]]:
    """One run as events; times count from the start of its processes."""
    start = int(datetime.fromisoformat(record.started_at).timestamp() * 1e3) if record.started_at else 0
    about = {"case": record.case, "repeat": record.repeat}
    identity = record.identity

    def event(key: str, value: Any, after_s: float = 0.0, kind: str = "POINT_IN_TIME", **more: Any) -> dict[str, Any]:
        time_ms = start + round(after_s * 1e3)
        fields = {"namespace": "", "time_ms": time_ms, "event_type": kind, "key": key, "value": value}
        return {**fields, "metadata": {**about, **more}}

    yield event("submission_benchmark", identity.model)
    yield event("global_batch_size", identity.global_batch_size)
    yield event("train_samples", identity.train_images)
    yield event("opt_name", identity.optimizer)
    yield event("opt_base_learning_rate", identity.lr)
    yield event("gradient_accumulation_steps", identity.grad_accum_steps)
    yield event("run_start", None, kind="INTERVAL_START")
    for point in record.learning.points if record.learning else ():
        yield event("eval_accuracy", point.accuracy, point.seconds, samples_count=point.images, step=point.update)
    stats = {"throughput": images_per_s(record), "step_time_s": step_time_s(record)}
    yield event("tracked_stats", stats, record.seconds or 0.0)
    status = "success" if record.outcome == "ok" else "aborted"
    yield event("run_stop", None, record.seconds or 0.0, "INTERVAL_END", status=status)
