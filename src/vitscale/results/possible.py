"""Numbers that are numbers and still cannot be: no time, times of years, less than nothing. Torch-free.

In: a Record of the right form. Out: the same, or without the sections (measurement, learning, epoch_times) that hold
such a number, and with a note for each. One impossible figure makes those beside it untrue as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vitscale.results.record import EpochTimes, Learning, Measurement, Record

LEFT_OUT = "left out:"
"""What the notes of this kind have after the section's name."""
MAX_TIME_S = 1e7
"""116 days: longer than anybody's update or epoch."""
_MAX_SECONDS = 1e9  # of a whole run
_MOST = 1e24
_SIGNED = frozenset({"losses", "loss", "temperature_c"})
_SPANS = frozenset({"warmup_step_time_s", "step_time_s", "data_wait_s", "traced_step_time_s", "idle_s"})
_SPANS |= {"seconds", "by_rank", "seconds_per_update", "mean_s", "min_s", "max_s"}


def possible(record: Record) -> Record:
    """Leave out what cannot be."""
    changes: dict[str, Any] = {}
    notes = []
    wrong = {
        "measurement": record.measurement and _measurement(record.measurement),
        "learning": record.learning and _learning(record.learning),
        "epoch_times": record.epoch_times and _epoch_times(record.epoch_times),
        "seconds": None if 0 <= (record.seconds or 0) <= _MAX_SECONDS else "it is not between 0 and 1e+09 s",
    }
    for name, why in wrong.items():
        if why:
            changes[name] = None
            notes.append(f"{name} {LEFT_OUT} {why}")
    return record.model_copy(update={**changes, "notes": (*record.notes, *notes)}) if notes else record


def _measurement(measured: Measurement) -> str | None:
    steps, images = len(measured.step_time_s), len(measured.images)
    if images and images != steps:
        return f"images has {images} values and step_time_s {steps}"
    if 0 in measured.images:
        return "an update had no images"
    if min((*measured.step_time_s, *measured.warmup_step_time_s), default=1.0) <= 0:
        return "a step time is not above 0"
    return _impossible(measured.model_dump(), "measurement", MAX_TIME_S)


def _learning(learning: Learning) -> str | None:
    shares = (learning.target, learning.final_accuracy, *(point.accuracy for point in learning.points))
    if any(share is not None and not 0 <= share <= 1 for share in shares):
        return "an accuracy is not between 0 and 1"
    return _impossible(learning.model_dump(), "learning", _MOST)


def _epoch_times(times: EpochTimes) -> str | None:
    if times.mean_s <= 0:
        return "mean_s is not above 0"
    low, high = times.min_s, times.max_s
    if (low is not None and low > times.mean_s) or (high is not None and high < times.mean_s):
        return "mean_s is not between min_s and max_s"
    return _impossible(times.model_dump(), "epoch_times", MAX_TIME_S)


def _impossible(section: Any, name: str, longest: float) -> str | None:
    """Say of the first such number what is wrong with it."""
    for field, value, is_time in _numbers(section, name, False):
        if value < 0:
            return f"{field} is below 0"
        if value > (longest if is_time else _MOST):
            return f"{field} is more than {longest if is_time else _MOST:.0e}{' s' if is_time else ''}"
    return None


def _numbers(value: Any, name: str, is_time: bool) -> Iterator[tuple[str, float, bool]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value, is_time
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        if key not in _SIGNED:
            yield from _numbers(item, f"{name}.{key}", is_time or key in _SPANS)
