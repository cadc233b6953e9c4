"""Scaling: series of world sizes, speed-up and efficiency with intervals, the laws, and what limits a series.

In: Cases. Out: ScalingSeries. A series is what differs in nothing but the world size and what the study's mode lets
grow with it. Speed-up is the ratio of images per second to the series' smallest world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitscale.analysis.cases import Case, attributions, summarise_case
from vitscale.analysis.laws import Law, fit
from vitscale.analysis.statistics import ratio_interval
from vitscale.analysis.summary import Fit, Interval, ScalingPoint, ScalingSeries
from vitscale.results.record import Identity, Scalar

_GROWS = ("world_size", "nodes", "devices_per_node")
_LAWS: dict[str, tuple[Law, ...]] = {
    "strong": ("amdahl", "usl"),
    "weak": ("gustafson", "usl"),
    "grid": ("amdahl", "gustafson", "usl"),
}
PHASE_NAMES = {
    "data_wait": "waiting for data",
    "host_to_device": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "exposed_comm": "exposed communication",
    "straggler_wait": "waiting for the slowest rank",
    "optimizer": "the optimizer",
    "step": "the step",
    "other": "time that no phase explains",
}


_NEAR = 0.05  # as close to linear as makes no matter
_HIDES_COMM = ("forward", "backward", "optimizer", "step")


@dataclass(frozen=True)
class Line:
    """The cases of one series, smallest world size first; all of them, with or without a result."""

    axes: dict[str, Scalar]
    cases: tuple[Case, ...]

    @property
    def measured(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.rates)

    @property
    def mode(self) -> Literal["grid", "strong", "weak"]:
        return self.cases[0].first.mode

    @property
    def fixed(self) -> Literal["global", "per_device"] | None:
        return self.cases[0].first.fixed

    @property
    def label(self) -> str:
        """How sentences and legends name it: the values that its cases share."""
        shared = [str(value) if name == "mode" else f"{name}={value}" for name, value in self.axes.items()]
        return ", ".join(shared) or "all cases"


def find_lines(cases: Sequence[Case]) -> tuple[Line, ...]:
    """Put cases into series; those of one world size only are none."""
    groups: dict[object, list[Case]] = {}
    for case in cases:
        groups.setdefault(_key(case), []).append(case)
    lines = []
    for group in groups.values():
        for members in _split(group):
            if len({case.identity.world_size for case in members}) > 1:
                axes = {name: value for name, value in members[0].first.axes.items() if name not in _GROWS}
                lines.append(Line(axes, tuple(sorted(members, key=lambda case: case.identity.world_size))))
    return tuple(lines)


def _key(case: Case) -> object:
    axes = tuple((name, repr(value)) for name, value in case.first.axes.items() if name not in _GROWS)
    return case.first.mode, case.first.fixed, tuple(sorted(axes))


def _split(group: list[Case]) -> list[list[Case]]:
    """One world size over different numbers of nodes makes different series."""
    sizes = [case.identity.world_size for case in group]
    if len(set(sizes)) == len(sizes):
        return [group]
    by_shape: dict[object, list[Case]] = {}
    for case in group:
        by_shape.setdefault(case.identity.nodes, []).append(case)
    return list(by_shape.values())


def describe(line: Line) -> ScalingSeries | None:
    """Points, fits and limit of one series; None if fewer than two world sizes were measured."""
    measured = line.measured
    if len(measured) < 2:
        return None
    base = measured[0]
    return ScalingSeries(
        label=line.label,
        axes=line.axes,
        mode=line.mode,
        fixed=line.fixed,
        baseline=base.name,
        points=tuple(_point(case, base) for case in measured),
        fits=_fits(line),
        limit=_limit(measured),
    )


def _point(case: Case, base: Case) -> ScalingPoint:
    speedup = Interval(1.0, 1.0, 1.0) if case is base else ratio_interval(case.rates, base.rates)
    share = base.identity.world_size / case.identity.world_size
    rate = summarise_case(case).images_per_s
    assert rate is not None
    efficiency = Interval(*(None if x is None else x * share for x in speedup))  # type: ignore[arg-type]
    return ScalingPoint(case.identity.world_size, case.name, rate, speedup, efficiency)


def _fits(line: Line) -> tuple[Fit, ...]:
    laws = _LAWS[line.mode]
    if mixed := [case for case in line.measured if len(set(case.identity.device_names)) > 1]:
        why = f"devices of different kinds from {mixed[0].identity.world_size} devices on; the law supposes equal ones"
        return tuple(Fit(law, refused=why) for law in laws)
    points = [(case.identity.world_size, case.rates) for case in line.measured]
    return tuple(fit(law, points) for law in laws)


def _limit(measured: Sequence[Case]) -> str | None:
    """Name the parts of an update that grew, at the largest world size, beyond what linear scaling gives."""
    first, last = summarise_case(measured[0]), summarise_case(measured[-1])
    speedup = ratio_interval(measured[-1].rates, measured[0].rates)
    size, start = last.identity.world_size, first.identity.world_size
    linear = size / start
    if (speedup.high or speedup.value) >= linear:
        if speedup.value < (1 - _NEAR) * linear:
            return f"the runs differ too much to say what limits it up to {size} devices, if anything"
        return f"nothing that these runs can show limits it up to {size} devices"
    if first.attribution is None or last.attribution is None:
        return None
    per_device = _images_per_device(last.identity), _images_per_device(first.identity)
    if not all(per_device):
        return None
    share = per_device[0] / per_device[1]
    lost = {
        phase: last.attribution.get(phase, 0.0) - share * first.attribution.get(phase, 0.0)
        for phase in last.attribution | first.attribution
    }
    total = sum(lost.values())
    if total <= 0:
        return None
    worst = sorted(lost, key=lambda phase: -lost[phase])
    named = worst[:1] if lost[worst[0]] >= total / 2 else [phase for phase in worst[:2] if lost[phase] > 0]
    hides = any(a.method == "phases" for a in attributions(measured[-1].measurements)) and size > 1
    parts = " and ".join(
        PHASE_NAMES.get(phase, phase)
        + (" (with the communication in it)" if hides and phase in _HIDES_COMM else "")
        + f" {lost[phase] * 1e3:.3g} ms"
        for phase in named
    )
    of_it = " of it" if sum(lost[phase] for phase in named) <= total else ", less what other parts gain"
    return f"at {size} devices an update takes {total * 1e3:.3g} ms more than linear scaling would: {parts}{of_it}"


def _images_per_device(identity: Identity) -> float:
    return (identity.global_batch_size or 0) / identity.world_size
