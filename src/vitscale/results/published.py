"""Published tables into Records, so that the same analysis and lint run on them. Torch-free.

In: rows of a table (table.py). Out: Records in which everything that the table does not say is None. Nothing is
assumed: no precision, no learning rate, no engine. The number of training images of well-known data sets is filled in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from vitscale.errors import DataError
from vitscale.results.record import (
    MAX_BATCH,
    MAX_WORLD_SIZE,
    Attribution,
    Communication,
    EpochTimes,
    Identity,
    Learning,
    Measurement,
    Record,
    Scalar,
)
from vitscale.results.table import Row, read_table

# CIFAR: www.cs.toronto.edu/~kriz/cifar.html; ImageNet: Russakovsky et al. 2015, table 2 (ILSVRC 2012).
_TRAIN_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "imagenet": 1_281_167, "imagenet1k": 1_281_167}
_AXES = ("mode", "cluster", "data_source", "model", "engine", "zero_stage", "precision", "micro_batch_size")
# Columns that name a case only where rows would pass for repeats of one another without them.
_TELLS_APART = (
    "precision",
    "global_batch_size",
    "grad_accum_steps",
    "img_size",
    "device",
    "nodes",
    "placement",
    "data_fraction",
    "train_images",
    "optimizer",
    "lr",
    "lr_scaling",
    "warmup_updates",
)
_WHOLE = (
    "micro_batch_size",
    "global_batch_size",
    "grad_accum_steps",
    "img_size",
    "nodes",
    "train_images",
    "world_size",
)
_PRECISION = re.compile(r"\b(float8|fp8|fp16|bf16|tf32|fp32|fp64)\b", re.IGNORECASE)
_PHASES = {
    "data_wait": "data_wait_ms",
    "forward": "forward_ms",
    "backward": "backward_ms",
    "exposed_comm": "allreduce_ms",
    "optimizer": "optimizer_ms",
}
Mode = Literal["grid", "strong", "weak"]


class Imported(NamedTuple):
    """Records, and the table's columns that were left out."""

    records: tuple[Record, ...]
    unknown: tuple[str, ...]


def import_records(path: Path, facts: Mapping[str, str] | None = None) -> Imported:
    """Read a table. facts: what its text says of all rows, such as {'precision': 'fp32'}."""
    table = read_table(path, facts or {})
    repeats: Counter[str] = Counter()
    records = []
    for row, axes in zip(table.rows, _all_axes(table.rows), strict=True):
        case = _name(axes)
        records.append(_record(row, path, axes, case, repeats[case]))
        repeats[case] += 1
    return Imported(tuple(records), table.unknown)


def _all_axes(rows: tuple[Row, ...]) -> list[dict[str, Scalar]]:
    """The axes of each row. Rows with the same ones are repeats, so those that differ in what was run must not be."""
    varying = tuple(name for name in _AXES if len({row.text(name) for row in rows}) > 1)
    alike: dict[str, list[Row]] = {}
    for row in rows:
        alike.setdefault(_name(_axes(row, varying)), []).append(row)
    apart = (
        name for name in _TELLS_APART if any(len({_told(row, name) for row in same}) > 1 for same in alike.values())
    )
    names = tuple(dict.fromkeys((*varying, *apart)))
    return [_axes(row, names) for row in rows]


def _name(axes: Mapping[str, Scalar]) -> str:
    return " ".join(f"{name}={value}" for name, value in axes.items())


def _axes(row: Row, names: tuple[str, ...]) -> dict[str, Scalar]:
    return {name: value for name in (*names, "world_size") if (value := _value(row, name)) is not None}


def _value(row: Row, name: str) -> Scalar:
    if name == "zero_stage":
        return _stage(row)
    return row.whole(name) if name in _WHOLE else _told(row, name)


def _told(row: Row, name: str) -> str | None:
    return _precision(row) if name == "precision" else row.text(name)


def _precision(row: Row) -> str | None:
    in_note = _PRECISION.search(row.text("note") or "")
    return in_note[1].lower() if in_note else row.text("precision")


def _stage(row: Row) -> int | None:
    stage = row.number("zero_stage")
    return None if stage is None else int(stage)


def _record(row: Row, path: Path, axes: dict[str, Scalar], case: str, repeat: int) -> Record:
    note = row.text("note")
    return Record(
        study=path.stem,
        mode=_mode(row),
        case=case,
        axes=axes,
        repeat=repeat,
        identity=_identity(row),
        measurement=_measurement(row),
        learning=_learning(row),
        epoch_times=_epoch_times(row),
        source=path.name,
        notes=(note,) if note and not _PRECISION.fullmatch(note) else (),
    )


def _mode(row: Row) -> Mode:
    match row.text("mode"):
        case None | "grid":
            return "grid"
        case "strong":
            return "strong"
        case "weak":
            return "weak"
        case other:
            raise DataError(f"{row.where}, column mode: '{other}' is none of strong, weak, grid")


def _identity(row: Row) -> Identity:
    world_size = row.whole("world_size")
    if world_size is None:
        raise DataError(f"{row.where} has no number of devices")
    if world_size > MAX_WORLD_SIZE:
        raise DataError(f"{row.where}, column world_size: {world_size:.3g} devices are more than {MAX_WORLD_SIZE:,}")
    micro, accum = row.whole("micro_batch_size"), row.whole("grad_accum_steps")
    batch = row.whole("global_batch_size") or (micro * (accum or 1) * world_size if micro else None)
    if batch is not None and batch > MAX_BATCH:
        raise DataError(f"{row.where}: a global batch of {batch:.3g} images is more than {MAX_BATCH:.0e}")
    nodes = row.whole("nodes") or (world_size if row.text("placement") == "one GPU per node" else 1)
    warmup = row.number("warmup_updates")
    return Identity(
        model=row.text("model"),
        img_size=row.whole("img_size"),
        engine=row.text("engine"),
        zero_stage=_stage(row),
        world_size=world_size,
        nodes=nodes,
        device_names=_devices_of(row, world_size),
        precision=_precision(row),
        micro_batch_size=micro,
        grad_accum_steps=accum,
        global_batch_size=batch,
        optimizer=row.text("optimizer"),
        lr=row.positive("lr"),
        lr_scaling=row.text("lr_scaling"),
        warmup_updates=None if warmup is None else int(warmup),
        data_source=row.text("data_source"),
        train_images=_train_images(row),
    )


def device_names(text: str | None, world_size: int) -> tuple[str, ...]:
    """'RTX 3070 x3, then GTX 1070' at 4 devices: each device's name, in order; a single name stands for all."""
    if text is None:
        return ()
    parts = re.split(r",\s*(?:then\s+)?", re.sub(r"\s*\(.*\)", "", text))
    found = [re.fullmatch(r"(.*?)\s*[x×]\s*(\d{1,20})", part.strip()) for part in parts]
    counts = [int(one[2]) if one else 1 for one in found]
    longer = sum(counts) > world_size and ", then " in text  # the whole cluster, of which these are the first ones
    if any(found) and sum(counts) != world_size and not longer:
        raise DataError(
            f"the device list '{text}' names {sum(counts)} devices, but the row has {world_size}; make them equal, or "
            "write 'A x3, then B' for a longer list of which the first ones were used"
        )
    names: list[str] = []
    for part, one, number in zip(parts, found, counts, strict=True):
        names += [one[1] if one else part.strip()] * min(number, world_size)
    return tuple(names[:world_size])


def _devices_of(row: Row, world_size: int) -> tuple[str, ...]:
    try:
        return device_names(row.text("device"), world_size)
    except DataError as error:
        raise DataError(f"{row.where}, column device: {error}") from None


def _train_images(row: Row) -> int | None:
    images = row.whole("train_images")
    if images is None:
        images = _TRAIN_IMAGES.get(re.sub(r"[^a-z0-9]", "", (row.text("data_source") or "").lower()))
    share = row.share("data_fraction")
    return images if images is None or share is None else round(images * share)


def _measurement(row: Row) -> Measurement | None:
    batch = _identity(row).global_batch_size
    step = row.positive("step_time_s")
    if step is None and (milliseconds := row.positive("step_time_ms")) is not None:
        step = milliseconds / 1e3
    rate = row.positive("images_per_s")
    if step is None and rate is not None:
        if batch is None:
            raise DataError(
                f"{row.where}: images_per_s needs a batch (micro_batch_size or global_batch_size) beside it"
            )
        step = batch / rate
    seconds = {phase: value / 1e3 for phase, column in _PHASES.items() if (value := row.number(column)) is not None}
    if step is None and not seconds:
        return None
    return Measurement(
        step_time_s=() if step is None else (step,),
        images=(batch,) if step is not None and batch else (),
        communication=Communication(seconds_per_update=seconds.get("exposed_comm")),
        attribution=_attribution(seconds),
        attribution_missing=None if seconds else "the table gives no parts of an update",
        warnings=("the all-reduce was timed apart from backward, so all of it counts as exposed",)
        if "exposed_comm" in seconds
        else (),
    )


def _attribution(seconds: dict[str, float]) -> Attribution | None:
    if not seconds:
        return None
    absent = ("data_wait", "host_to_device", "exposed_comm", "straggler_wait", "other")
    why = "the table does not say"
    return Attribution(updates=None, seconds=seconds, unknown={name: why for name in absent if name not in seconds})


def _learning(row: Row) -> Learning | None:
    splits: tuple[Literal["test", "val", "train"], ...] = ("test", "val", "train")
    for split in splits:
        if (accuracy := row.share(f"{split}_accuracy")) is not None:
            return Learning(split=split, final_accuracy=accuracy)
    return None


def _epoch_times(row: Row) -> EpochTimes | None:
    mean = row.positive("epoch_mean_s")
    if mean is None:
        return None
    low, high = row.positive("epoch_min_s"), row.positive("epoch_max_s")
    if (low is not None and low > mean) or (high is not None and high < mean):
        raise DataError(
            f"{row.where}: the mean time of an epoch, {mean:g} s, is not between its least and its greatest "
            f"({'not given' if low is None else f'{low:g}'}, {'not given' if high is None else f'{high:g}'})"
        )
    return EpochTimes(
        mean_s=mean,
        min_s=low,
        max_s=high,
        epochs=row.whole("epochs"),
        includes_warmup=row.flag("includes_warmup"),
    )
