"""Cases: the repeats of one case together, and what is said of them one by one. Torch-free.

In: Records. Out: Case (raw figures, one per run) for the other modules of analysis, and CaseSummary for the report.
A run's step time is the median of its counted updates; failed runs give their outcome and cause, and no figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from vitscale.analysis.statistics import median_interval
from vitscale.analysis.summary import CaseSummary, Interval
from vitscale.results.rates import images_per_s, pace, step_time_s
from vitscale.results.record import Attribution, DeviceState, Identity, Learning, Measurement, Point, Record

MAX_POINTS = 200
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """All records of one case; ok: those that ended well."""

    name: str
    records: tuple[Record, ...]

    @property
    def ok(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.outcome == "ok")

    @property
    def first(self) -> Record:
        """The record that stands for what was run."""
        return (self.ok or self.records)[0]

    @property
    def identity(self) -> Identity:
        return self.first.identity

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(record.measurement for record in self.ok if record.measurement)

    @property
    def rates(self) -> tuple[float, ...]:
        """Images per second, one per run."""
        return _known(images_per_s(record) for record in self.ok)

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds per update or, where a source gives only these, per epoch; one per run."""
        return _known(pace(record) for record in self.ok)


def group(records: Iterable[Record]) -> tuple[Case, ...]:
    """Put the repeats of each case together, in the order in which the cases come first."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.case, []).append(record)
    return tuple(Case(name, tuple(sorted(found, key=lambda r: r.repeat))) for name, found in by_name.items())


def summarise_case(case: Case) -> CaseSummary:
    """Everything that is said of one case without looking at another."""
    rates, steps = case.rates, _known(step_time_s(record) for record in case.ok)
    rate = median_interval(rates) if rates else None
    measured = case.measurements
    allocated = _largest(measured, lambda m: m.peak_allocated_bytes)
    learned = _learned(case)
    states = [state for m in measured for state in m.device_state]
    return CaseSummary(
        name=case.name,
        axes=case.first.axes,
        identity=case.identity,
        repeats=_repeats(case),
        outcomes=dict(Counter(record.outcome for record in case.records)),
        causes=tuple({record.cause.sentence: record.cause for record in case.records if record.cause}.values()),
        updates=sum(len(m.step_time_s) for m in measured),
        step_time_s=median_interval(steps) if steps else None,
        images_per_s=rate,
        images_per_s_per_device=rate.value / case.identity.world_size if rate else None,
        mfu=_mfu(measured, rate),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=_largest(measured, lambda m: m.peak_reserved_bytes),
        peak_rss_bytes=_largest(measured, lambda m: m.peak_rss_bytes),
        bytes_per_image=_bytes_per_image(case),
        attribution=_attribution(measured),
        attribution_unknown=_unknown(measured),
        communication_bytes=_first(m.communication.bytes_per_update for m in measured),
        communication_s=_middle(m.communication.seconds_per_update for m in measured),
        bus_bandwidth_bytes_per_s=_middle(m.communication.bus_bandwidth_bytes_per_s for m in measured),
        joules_per_1000_images=_middle(_joules_per_1000_images(m) for m in measured),
        power_w=_state(states, "power_w"),
        temperature_c=_state(states, "temperature_c"),
        sm_clock_mhz=_state(states, "sm_clock_mhz"),
        epoch_time_s=_middle([record.epoch_times.mean_s for record in case.ok if record.epoch_times]),
        accuracy=learned.accuracy,
        accuracy_split=learned.split,
        target=learned.target,
        seconds_to_target=learned.seconds,
        updates_to_target=learned.updates,
        images_to_target=learned.images,
        curves=learned.curves,
        step_series=tuple(thin(m.step_time_s) for m in measured if m.step_time_s),
        warnings=_warnings(case),
    )


def _repeats(case: Case) -> int:
    """How many runs a figure is of: those with a time, or with anything at all where none has."""
    return len(case.times) or sum(bool(record.measurement or record.learning) for record in case.ok)


def thin(values: Sequence[T]) -> tuple[T, ...]:
    """At most 200 of the values, evenly picked, the first and the last among them."""
    if len(values) <= MAX_POINTS:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS))


def attributions(measured: Sequence[Measurement]) -> list[Attribution]:
    """Those with a trace, if any run has one; else those by phases, in which communication hides.

    Of these, only runs that tell the same phases apart, the most frequent ones: what one run calls exposed
    communication hides in another's backward, and a mean over both would be neither.
    """
    known = [m.attribution for m in measured if m.attribution]
    known = [a for a in known if a.method == "trace"] or known
    counts = Counter(frozenset(a.seconds) for a in known)
    most = max(counts, key=lambda phases: (counts[phases], len(phases)), default=frozenset())
    return [a for a in known if a.seconds.keys() == most]


def _mfu(measured: Sequence[Measurement], rate: Interval | None) -> float | None:
    flops = _middle(m.flops_per_image for m in measured)
    peak = _middle(m.peak_flops for m in measured)
    return flops * rate.value / peak if flops and peak and rate else None


def _attribution(measured: Sequence[Measurement]) -> dict[str, float] | None:
    """Means over the runs that were attributed in the same way: the parts still add up to the mean of wall times."""
    found = attributions(measured)
    if not found:
        return None
    parts = [attribution.seconds for attribution in found]
    return {key: fmean(part[key] for part in parts) for key in parts[0]}


def _unknown(measured: Sequence[Measurement]) -> dict[str, str]:
    """What is n/a and why; under 'all' where there is no attribution at all."""
    if known := attributions(measured):
        return {phase: why for attribution in known for phase, why in attribution.unknown.items()}
    why = _first(m.attribution_missing for m in measured)
    return {"all": why} if why else {}


def _joules_per_1000_images(measurement: Measurement) -> float | None:
    energies = [state.energy_j for state in measurement.device_state]
    images = sum(measurement.images)
    if not energies or not images or any(energy is None for energy in energies):
        return None
    return sum(energy for energy in energies if energy is not None) / images * 1000


def _state(states: Sequence[DeviceState], name: str) -> float | None:
    return _middle(getattr(state, name) for state in states)


class _Learned(NamedTuple):
    accuracy: Interval | None = None
    split: str | None = None
    target: float | None = None
    seconds: Interval | None = None
    updates: Interval | None = None
    images: Interval | None = None
    curves: tuple[tuple[tuple[int, int, float, float], ...], ...] = ()


def _learned(case: Case) -> _Learned:
    """Accuracy, and what it took to reach the target. Runs that never got there leave the cost unknown."""
    learned = [record.learning for record in case.ok if record.learning]
    if not learned:
        return _Learned()
    finals = _known(learning.final_accuracy for learning in learned)
    result = _Learned(
        median_interval(finals, log=False) if finals else None,
        learned[0].split,
        learned[0].target,
        curves=tuple(
            tuple((point.update, point.images, point.seconds, point.accuracy) for point in thin(learning.points))
            for learning in learned
            if learning.points
        ),
    )
    points = [reached for learning in learned if (reached := target_point(learning))]
    if len(points) < len(case.ok):
        return result
    return result._replace(
        seconds=median_interval([point.seconds for point in points]),
        updates=median_interval([float(point.update) for point in points]),
        images=median_interval([float(point.images) for point in points]),
    )


def target_point(learning: Learning) -> Point | None:
    """The first evaluation that reached the target."""
    target = learning.target
    return None if target is None else next((point for point in learning.points if point.accuracy >= target), None)


def _bytes_per_image(case: Case) -> float | None:
    """Of the rank that allocates most for each of its images; ranks may take unequal shares."""
    even = case.identity.micro_batch_size
    ranks = [
        peak / images
        for m in case.measurements
        for peak, images in zip(m.peak_allocated_bytes, m.shares or [even] * len(m.peak_allocated_bytes), strict=False)
        if images
    ]
    return max(ranks, default=None)


def _warnings(case: Case) -> tuple[str, ...]:
    said = [
        text for m in case.measurements for text in (*m.warnings, *(m.attribution.warnings if m.attribution else ()))
    ]
    return tuple(dict.fromkeys([*said, *(note for record in case.records for note in record.notes)]))


def _largest(measured: Sequence[Measurement], of: Callable[[Measurement], tuple[int, ...]]) -> int | None:
    return max((value for m in measured for value in of(m)), default=None)


def _middle(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return median(known) if known else None


def _first(values: Iterable[T | None]) -> T | None:
    return next((value for value in values if value is not None), None)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)
