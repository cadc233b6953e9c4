"""The table of cases: which columns a study needs, their text for people and their raw values for cases.csv.

Columns that are empty for all cases are dropped; what is the same in all cases is lifted out of the table into a list
of facts. cases.csv keeps everything, in seconds and bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass

from vitscale.analysis.summary import CaseSummary, Interval, Summary
from vitscale.report import words
from vitscale.results.record import Identity, Scalar

Value = Scalar | Interval


@dataclass(frozen=True)
class Column:
    """One column. name: as in cases.csv, with its unit; title: as people read it; tells: whether it is a setting."""

    name: str
    title: str
    value: Callable[[CaseSummary], Value]
    text: Callable[[float | None], str] = words.number
    setting: bool = False


MAIN = frozenset(
    {"outcome", "repeats", "images_per_s", "step_time_s", "scaling_efficiency", "mfu", "peak_allocated_bytes"}
    | {"exposed_comm_s", "joules_per_1000_images", "epoch_time_s", "accuracy", "seconds_to_target"}
)
"""Names of the columns that stay where there is little room."""


@dataclass(frozen=True)
class Cell:
    """What stands in one place: the figure, its interval, and the value to sort by."""

    text: str
    interval: str = ""
    value: Scalar = None


@dataclass(frozen=True)
class Table:
    """Columns that differ, one row per case, and what all cases share."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shared: tuple[tuple[str, str], ...]


def table(summary: Summary) -> Table:
    """The table as people read it."""
    columns = _columns(summary)
    cases = summary.cases
    kept, shared = [], []
    for column in columns:
        values = [column.value(case) for case in cases]
        known = [value for value in values if value is not None and value != ""]
        if not known:
            continue
        if column.setting and len(cases) > 1 and len(known) == len(values) and len(set(known)) == 1:
            shared.append((column.title, _cell(column, known[0]).text))
        else:
            kept.append(column)
    names = words.labels(cases, summary.axes)
    rows = tuple(tuple(_cell(column, column.value(case)) for column in kept) for case in cases)
    return Table(tuple(kept), tuple(names[case.name] for case in cases), rows, tuple(shared))


def to_csv(summary: Summary) -> str:
    """Everything, one row per case, in base units; intervals as two further columns."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = _columns(summary)
    wide = {column.name for column in columns for case in summary.cases if isinstance(column.value(case), Interval)}
    head = [
        name for c in columns for name in ([c.name, f"{c.name}_low", f"{c.name}_high"] if c.name in wide else [c.name])
    ]
    writer.writerow(["case", *head])
    for case in summary.cases:
        row: list[Scalar] = [case.name]
        for column in columns:
            value = column.value(case)
            if column.name in wide:
                row.extend(value if isinstance(value, Interval) else (None, None, None))
            else:
                row.append(value if not isinstance(value, Interval) else value.value)
        writer.writerow([_harmless(cell) for cell in row])
    return file.getvalue()


def _harmless(cell: Scalar) -> Scalar:
    """Text that a spreadsheet would run as a formula gets an apostrophe."""
    if not isinstance(cell, str):
        return cell
    text = words.clean(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _cell(column: Column, value: Value) -> Cell:
    if value is None or value == "":
        return Cell("")
    if isinstance(value, Interval):
        low_high = ""
        if value.low is not None and value.high is not None and value.low < value.high:
            low_high = f"{column.text(value.low)} to {column.text(value.high)}"
        return Cell(column.text(value.value), low_high, value.value)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", "", value)
    if isinstance(value, str):
        return Cell(words.clean(value), "", value)
    return Cell(column.text(value), "", value)


# --- columns ------------------------------------------------------------------------------------------------------


def _setting(name: str, title: str, get: Callable[[Identity], Scalar], text: Callable[[float | None], str]) -> Column:
    return Column(name, title, lambda case: get(case.identity), text, setting=True)


def _plain(value: float | None) -> str:
    return words.NONE if value is None else f"{value:g}"


def _columns(summary: Summary) -> list[Column]:
    identity = [
        _setting("engine", "engine", lambda i: i.engine, _plain),
        _setting("zero_stage", "zero_stage", lambda i: i.zero_stage if i.engine == "deepspeed" else None, _plain),
        _setting("compile", "compile", lambda i: i.compile, _plain),
        _setting("cuda_graph", "cuda_graph", lambda i: i.cuda_graph, _plain),
        _setting("world_size", "world_size", lambda i: i.world_size, words.whole),
        _setting("nodes", "nodes", lambda i: i.nodes, words.whole),
        _setting("micro_batch_size", "micro_batch_size", lambda i: i.micro_batch_size, words.whole),
        _setting("grad_accum_steps", "grad_accum_steps", lambda i: i.grad_accum_steps, words.whole),
        _setting("global_batch_size", "global_batch_size", lambda i: i.global_batch_size, words.whole),
        _setting("model", "model", lambda i: i.model, _plain),
        _setting("img_size", "img_size", lambda i: i.img_size, _plain),
        _setting("precision", "precision", lambda i: i.precision, _plain),
        _setting("device", "device", _devices, _plain),
        _setting("data", "data", lambda i: i.data_source, _plain),
        _setting("train_images", "train images", lambda i: i.train_images, words.whole),
        _setting("optimizer", "optimizer", lambda i: i.optimizer, _plain),
        _setting("lr", "lr", lambda i: i.lr, _plain),
    ]
    said = {column.name for column in identity}
    more = [_axis(name) for name in summary.axes if name.rpartition(".")[2] not in said]
    return [*_measured(summary), *more, *identity]


def _axis(name: str) -> Column:
    return Column(name, words.clean(name), lambda case: case.axes.get(name), _plain, setting=True)


def _devices(identity: Identity) -> str | None:
    return ", ".join(dict.fromkeys(identity.device_names)) or identity.device_type


def _measured(summary: Summary) -> list[Column]:
    efficiency = {point.case: point.efficiency for series in summary.series for point in series.points}
    return [
        Column("outcome", "outcome", _outcome),
        Column("repeats", "repeats", lambda c: c.repeats, words.whole),
        Column("images_per_s", "images/s", lambda c: c.images_per_s),
        Column("images_per_s_per_device", "images/s per device", lambda c: c.images_per_s_per_device),
        Column("step_time_s", "step time, ms", lambda c: c.step_time_s, words.milliseconds),
        Column("updates", "updates counted", lambda c: c.updates or None, words.whole),
        Column("scaling_efficiency", "scaling_efficiency", lambda c: efficiency.get(c.name), _share),
        Column("mfu", "MFU", lambda c: c.mfu, _share),
        Column("peak_allocated_bytes", "peak allocated, GiB", lambda c: c.peak_allocated_bytes, words.gib),
        Column("peak_reserved_bytes", "peak reserved, GiB", lambda c: c.peak_reserved_bytes, words.gib),
        Column("peak_rss_bytes", "peak RSS, GiB", lambda c: c.peak_rss_bytes, words.gib),
        Column("data_wait_s", "data wait, ms", lambda c: (c.attribution or {}).get("data_wait"), words.milliseconds),
        Column(
            "exposed_comm_s",
            "exposed comm, ms",
            lambda c: (c.attribution or {}).get("exposed_comm"),
            words.milliseconds,
        ),
        Column("communication_bytes", "sent per update, GiB", lambda c: c.communication_bytes, words.gib),
        Column("bus_bandwidth_bytes_per_s", "bus bandwidth, GB/s", lambda c: c.bus_bandwidth_bytes_per_s, _gigabytes),
        Column("joules_per_1000_images", "J per 1,000 images", lambda c: c.joules_per_1000_images),
        Column("power_w", "power per GPU, W", lambda c: c.power_w),
        Column("temperature_c", "temperature, °C", lambda c: c.temperature_c),
        Column("sm_clock_mhz", "SM clock, MHz", lambda c: c.sm_clock_mhz, words.whole),
        Column("epoch_time_s", "epoch, s", lambda c: c.epoch_time_s),
        Column("accuracy", "accuracy, %", lambda c: c.accuracy, _hundredths),
        Column("accuracy_split", "measured on", lambda c: c.accuracy_split),
        Column("seconds_to_target", "time to target, s", lambda c: c.seconds_to_target),
        Column("updates_to_target", "updates to target", lambda c: c.updates_to_target, words.whole),
        Column("images_to_target", "images to target", lambda c: c.images_to_target, words.whole),
    ]


def _outcome(case: CaseSummary) -> str:
    """'ok', or 'out of memory', or '2 ok, 1 timed out'."""
    if len(case.outcomes) == 1:
        return words.OUTCOMES[next(iter(case.outcomes))]
    return ", ".join(f"{count} {words.OUTCOMES[kind]}" for kind, count in case.outcomes.items())


def _share(value: float | None) -> str:
    return words.NONE if value is None else f"{value:.2f}"


def _gigabytes(value: float | None) -> str:
    return words.NONE if value is None else words.number(value / 1e9)


def _hundredths(value: float | None) -> str:
    return words.NONE if value is None else f"{100 * value:.1f}"
