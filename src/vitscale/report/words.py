"""How names and figures read, the same in the page, in Markdown and in the terminal. No markup here.

In: values of a Summary. Out: short text. Characters that cannot be printed are dropped from whatever people or
processes named, so that no output can be steered by a case name or by a line of stderr.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from vitscale.analysis.summary import CaseSummary, Interval, Summary
from vitscale.results.record import Identity, OutcomeKind, Scalar

NONE = "n/a"
OUTCOMES: dict[OutcomeKind, str] = {
    "ok": "ok",
    "oom": "out of memory",
    "timeout": "timed out",
    "error": "failed",
    "skipped": "skipped",
}
PHASE_NAMES = {
    "data_wait": "data wait",
    "host_to_device": "host to device",
    "forward": "forward",
    "backward": "backward",
    "step": "step (CUDA graph)",
    "exposed_comm": "exposed communication",
    "straggler_wait": "straggler wait",
    "optimizer": "optimizer",
    "other": "other",
}
SPLITS = {"val": "validation accuracy", "test": "test accuracy", "train": "training accuracy"}
_ENGINE_ORDER = ("single", "ddp", "fsdp2", "deepspeed")
# Axes that the engine's label or the device count already says.
SAID_ELSEWHERE = {"engine", "zero_stage", "world_size", "compile", "cuda_graph"}
_SHORT = {"micro_batch_size": "micro", "grad_accum_steps": "accum", "global_batch_size": "global", "img_size": "px"}


def clean(text: object) -> str:
    """Printable text on one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def clean_lines(text: str) -> str:
    """Printable text that keeps its lines and indents."""
    lines = text.replace("\t", "    ").splitlines()
    return "\n".join("".join(c for c in line if c.isprintable()).rstrip() for line in lines)


# --- figures ------------------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """A figure to `digits` significant places, in full where it has more before the point: 3,696, 7.00 and 0.0412."""
    if value is None:
        return NONE
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else NONE
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")  # so that 9.996 becomes 10.0 and not 10.00
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def whole(value: float | None) -> str:
    """A count."""
    return NONE if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """0.0412 -> '4.1 %'; whole numbers from 10 % on."""
    if share is None:
        return NONE
    return f"{_hundredths([share])[0]} %"


def percent_between(value: float, low: float, high: float) -> str:
    """'11.2 % (9.5 to 12.9 %)': all three with as many places as the smallest needs."""
    middle, left, right = _hundredths([value, low, high])
    return f"{middle} % ({left} to {right} %)"


def _hundredths(shares: list[float]) -> list[str]:
    fine = any(0 < 100 * abs(share) < 9.95 for share in shares)
    return [f"{100 * share:.1f}" if fine else f"{100 * share:.0f}" for share in shares]


def accuracy(value: float | None) -> str:
    """0.58471 -> '58.5 %'."""
    return NONE if value is None else f"{100 * value:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Seconds as ms, without the unit."""
    return NONE if seconds is None else number(1e3 * seconds)


def gib(size: float | None) -> str:
    """Bytes as GiB, without the unit."""
    return NONE if size is None else number(size / 2**30)


def duration(seconds: float | None) -> str:
    """A time as a person says it: '48 s', '12.4 min', '3.1 h'."""
    if seconds is None:
        return NONE
    if seconds < 100:
        return f"{number(seconds, 2 if seconds < 10 else 3)} s"
    if seconds < 100 * 60:
        return f"{number(seconds / 60)} min"
    return f"{number(seconds / 3600)} h"


def interval(value: Interval | None, text: Callable[[float | None], str] = number) -> str:
    """'3,696 (3,641 to 3,712)', or the value alone where there is no interval."""
    if value is None:
        return NONE
    if value.low is None or value.high is None or value.low == value.high:
        return text(value.value)
    return f"{text(value.value)} ({text(value.low)} to {text(value.high)})"


def sentence(text: str) -> str:
    """Somebody's words as a sentence: a capital, unless they begin with a name, one full stop, and 5 % for 5%."""
    text = re.sub(r"(\d)%", r"\1 %", clean(text)).rstrip(".")
    first = text.partition(" ")[0]
    if first.isalpha() and first.islower() and first not in _ENGINE_ORDER:
        text = text[0].upper() + text[1:]
    return f"{text}."


def plural(count: int, one: str, many: str | None = None) -> str:
    """'1 case', '3 cases'."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listing(items: list[str], most: int = 4) -> str:
    """'a', 'a and b', 'a, b, c and 5 more'."""
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


# --- names --------------------------------------------------------------------------------------------------------


def batch_axes(summary: Summary) -> list[str]:
    """Which of the three sizes of a batch the study varies, by the last part of the axis' name."""
    varied = {name.rpartition(".")[2] for name in summary.axes}
    return [name for name in ("micro_batch_size", "grad_accum_steps", "global_batch_size") if name in varied]


def engine(identity: Identity, compiled: bool = True) -> str:
    """'ddp', 'DeepSpeed ZeRO 2', 'fsdp2 + compile'; empty if unknown. compiled False: the bare engine."""
    name = clean(identity.engine or "")
    if name == "deepspeed":
        name = "DeepSpeed" if identity.zero_stage is None else f"DeepSpeed ZeRO {identity.zero_stage}"
    if not name or not compiled:
        return name
    return f"{name}{' + compile' if identity.compile else ''}{' + CUDA graph' if identity.cuda_graph else ''}"


def engine_order(identity: Identity) -> tuple[int, str, int]:
    """Where an engine stands in a list: the plain ones first, then ZeRO by its stage."""
    name = identity.engine or ""
    place = _ENGINE_ORDER.index(name) if name in _ENGINE_ORDER else len(_ENGINE_ORDER)
    return place, name, identity.zero_stage or 0


def devices(identity: Identity, count: int | None = None) -> str:
    """'8 GPUs', '2 processes', or '1 device' where the kind is not known."""
    kind = {"cuda": "GPU", "cpu": "process", None: "device"}[identity.device_type]
    count = identity.world_size if count is None else count
    return plural(count, kind, "processes" if kind == "process" else None)


def axis_value(name: str, value: Scalar) -> str:
    """One value of an axis, as a label says it: 'micro 64', 'ViT-B/16', 'compute bf16'."""
    last = clean(name.rpartition(".")[2])
    if isinstance(value, bool):
        return last if value else f"no {last}"
    text = f"{value:g}" if isinstance(value, float) else clean(value)
    if last == "img_size":
        return f"{text} px"
    if isinstance(value, str):
        return text
    return f"{_SHORT.get(last, last)} {text}"


def series(axes: dict[str, Scalar], identity: Identity, vary: Iterable[str], with_engine: bool) -> str:
    """A label of what varies, the number of devices left out: 'ddp, micro 64'. Empty where nothing does."""
    parts = [engine(identity)] if with_engine else []
    for name in vary:
        if name.rpartition(".")[2] not in SAID_ELSEWHERE and name in axes:
            parts.append(axis_value(name, axes[name]))
    return ", ".join(part for part in parts if part)


def differing(axes: Sequence[dict[str, Scalar]], vary: Iterable[str]) -> list[str]:
    """The axes that differ among these."""
    return [name for name in vary if len({repr(values.get(name)) for values in axes}) > 1]


def several_engines(identities: Iterable[Identity]) -> bool:
    """Whether an engine must be named to tell these apart."""
    return len({engine(identity) for identity in identities}) > 1


def in_sentence(case: CaseSummary, summary: Summary) -> str:
    """A case in running text, with full names: 'ddp + compile with micro_batch_size 256'."""
    name = engine(case.identity) if several_engines(c.identity for c in summary.cases) else ""
    rest = []
    for axis in summary.axes:
        last, value = axis.rpartition(".")[2], case.axes.get(axis)
        if last not in SAID_ELSEWHERE and value is not None:
            rest.append(axis_value(axis, value) if isinstance(value, str | bool) else f"{clean(last)} {clean(value)}")
    if name and rest:
        return f"{name} with {listing(rest)}"
    return name or ", ".join(rest) or engine(case.identity) or clean(case.name)


def series_labels(summary: Summary) -> list[str]:
    """A short label for each scaling series, in order, no two of one mode alike."""
    identities = {case.name: case.identity for case in summary.cases}
    made = []
    for one in summary.series:
        alike = [other for other in summary.series if other.mode == one.mode]
        vary = differing([other.axes for other in alike], summary.axes)
        engines = several_engines(identities[other.baseline] for other in alike)
        made.append(series(one.axes, identities[one.baseline], vary, engines) or clean(one.label))
    modes = [(text, one.mode) for text, one in zip(made, summary.series, strict=True)]
    return [
        text if modes.count((text, one.mode)) == 1 else f"{text} ({clean(one.label)})"
        for text, one in zip(made, summary.series, strict=True)
    ]


def left_out(summary: Summary) -> list[str]:
    """Sentences on what of the records could not be read, or was not believed."""
    said = [sentence(finding.sentence) for finding in summary.findings if finding.rule == "left-out"]
    if summary.broken_lines:
        said.append(f"{plural(summary.broken_lines, 'unreadable line')} of the records skipped.")
    return said


def labels(cases: Sequence[CaseSummary], vary: Iterable[str]) -> dict[str, str]:
    """case name -> a short label of what differs among these cases; those alike keep their full name behind it."""
    made: dict[str, str] = {}
    vary = differing([case.axes for case in cases], vary)
    engines = several_engines(case.identity for case in cases)
    counts = len({case.identity.world_size for case in cases}) > 1
    for case in cases:
        parts = [series(case.axes, case.identity, vary, engines), devices(case.identity) if counts else ""]
        made[case.name] = ", ".join(part for part in parts if part) or clean(case.name)
    taken = list(made.values())
    return {name: text if taken.count(text) == 1 else f"{text} ({clean(name)})" for name, text in made.items()}
