"""What analysis says of a study: plain data between `analysis` (which fills it) and `report` (which shows it).

Nothing here computes. Intervals are at 95 %; None means not measured or not to be told, and a sentence beside it says
why where a person would ask. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from vitscale.results.record import Cause, Identity, OutcomeKind, Scalar


class Interval(NamedTuple):
    """An estimate and its 95 % interval; low and high are None where there are too few values for one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CaseSummary:
    """All repeats of one case. Figures are None if no repeat ended ok."""

    name: str
    axes: dict[str, Scalar]
    identity: Identity
    repeats: int  # that ended ok and gave a figure
    outcomes: dict[OutcomeKind, int]
    causes: tuple[Cause, ...]
    updates: int  # counted, over all repeats
    step_time_s: Interval | None
    images_per_s: Interval | None
    images_per_s_per_device: float | None
    mfu: float | None
    peak_allocated_bytes: int | None  # largest over ranks and repeats
    peak_reserved_bytes: int | None
    peak_rss_bytes: int | None
    bytes_per_image: float | None  # peak of the fullest device by micro_batch_size
    attribution: dict[str, float] | None  # seconds per update, keys of results.record.PHASES
    attribution_unknown: dict[str, str]
    communication_bytes: int | None
    communication_s: float | None
    bus_bandwidth_bytes_per_s: float | None
    joules_per_1000_images: float | None
    power_w: float | None
    temperature_c: float | None
    sm_clock_mhz: float | None
    epoch_time_s: float | None
    accuracy: Interval | None
    accuracy_split: str | None  # val, test or train
    target: float | None
    seconds_to_target: Interval | None
    updates_to_target: Interval | None
    images_to_target: Interval | None
    curves: tuple[
        tuple[tuple[int, int, float, float], ...], ...
    ] = ()  # per repeat: (update, images, seconds, accuracy)
    step_series: tuple[tuple[float, ...], ...] = ()  # per repeat, thinned to at most 200 values, warm-up left out
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingPoint:
    """One world size of a series, beside the series' smallest world size."""

    world_size: int
    case: str
    images_per_s: Interval
    speedup: Interval
    efficiency: Interval


@dataclass(frozen=True)
class Fit:
    """A scaling law fitted to a series. refused: why there is none; then parameters and curve are empty."""

    law: Literal["amdahl", "gustafson", "usl"]
    parameters: dict[str, Interval] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()  # (world size, speed-up), dense
    max_speedup: float | None = None
    best_world_size: float | None = None  # USL's peak
    refused: str | None = None


@dataclass(frozen=True)
class ScalingSeries:
    """Cases that differ in nothing but the world size (and the batch that the mode lets grow)."""

    label: str
    axes: dict[str, Scalar]  # the values they share, world_size left out
    mode: Literal["grid", "strong", "weak"]
    fixed: Literal["global", "per_device"] | None
    baseline: str
    points: tuple[ScalingPoint, ...]
    fits: tuple[Fit, ...]
    limit: str | None = None  # one sentence: what limits it, from the attribution


@dataclass(frozen=True)
class Finding:
    """One unfair comparison or doubt, in words. rule: its stable name, under which docs explain it."""

    rule: str
    severity: Literal["error", "warning", "note"]
    sentence: str
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Two cases (or a case in two studies) compared. ratio: step time of b by that of a, 1.05 = b is 5 % slower."""

    case: str
    ratio: Interval | None  # None: one of them has no time
    p_value: float | None  # corrected for the number of cases
    verdict: Literal["faster", "slower", "no difference shown", "not compared"]
    smallest_seen: float | None  # the smallest relative difference that would have been found with 90 % power
    reason: str | None = None


@dataclass(frozen=True)
class Unequal:
    """A series over devices of different kinds, told apart; gains are predictions, 1 = all devices in lockstep.

    seconds[name]: a device's own time for its images of an update. kept, dropped: the devices worth having with equal
    shares, and the others. shares: images of each device, in order, if all are used at the same global batch.
    """

    label: str
    cases: tuple[str, ...]  # that ran on mixed devices
    images_per_device: int
    seconds: dict[str, float]
    devices: tuple[str, ...]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    kept_gain: float
    shares: tuple[int, ...]
    underfed_gain: float


@dataclass(frozen=True)
class Summary:
    """A whole study."""

    study: str
    mode: str
    fixed: str | None
    axes: tuple[str, ...]  # names of those that vary
    cases: tuple[CaseSummary, ...]
    series: tuple[ScalingSeries, ...]
    findings: tuple[Finding, ...]
    noise_floor: float | None  # relative, from the repeats: no claim smaller than this
    noise_note: str | None  # why there is none, or how it was found
    environments: tuple[dict[str, Any], ...]  # the different ones, most frequent first
    records: int
    broken_lines: int
    proved: bool | None  # whether the proof of equality covers all engines here
    unequal: tuple[Unequal, ...] = ()  # series over mixed devices, the longest first
