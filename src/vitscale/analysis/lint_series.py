"""Rules about series: what must be the same along one, and what its points cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vitscale.analysis.cases import Case, attributions
from vitscale.analysis.phrases import count, some, span
from vitscale.analysis.scaling import Line
from vitscale.analysis.study import Study, names
from vitscale.analysis.summary import Finding, ScalingPoint, ScalingSeries

_SAME_WORK_SPREAD = 0.05
_HIDDEN = 0.1  # of the time in collectives; less than this hidden is none
_SEEN = 0.02  # of an update; exposed communication below this is not worth a word
_LINEAR = 1 + 1e-9  # efficiencies up to here are linear: the rest is rounding


def baseline_data(study: Study) -> Iterator[Finding]:
    """The points of a series trained on different data."""
    yield from _differs(study, "baseline-data", "data sets", lambda case: case.identity.data_source)
    strong = Study(study.cases, tuple(line for line in study.lines if line.mode == "strong"), ())
    yield from _differs(strong, "baseline-data", "numbers of images", lambda case: case.identity.train_images)


def baseline_precision(study: Study) -> Iterator[Finding]:
    """The points of a series computed in different precisions."""
    yield from _differs(study, "baseline-precision", "precisions", lambda case: case.identity.precision)


def baseline_device(study: Study) -> Iterator[Finding]:
    """The points of a series ran on different devices; a mixed set of devices is its own rule."""
    yield from _differs(study, "baseline-device", "devices", _device)


def baseline_node(study: Study) -> Iterator[Finding]:
    """One point ran within a node, another over several; or they ran on different machines."""
    yield from _differs(study, "baseline-node", "machines", _machine, "warning")
    for line in study.lines:
        nodes = {case.identity.nodes for case in line.measured}
        if len(nodes) > 1 and min(nodes) == 1:
            first = next(case.identity.world_size for case in line.measured if case.identity.nodes > 1)
            sentence = (
                f"{line.label}: the baseline ran within one node and the points from {first} devices on over several, "
                "so their speed-up measures the network between nodes too"
            )
            yield Finding("baseline-node", "note", sentence, names(line.measured))


def mixed_devices(study: Study) -> Iterator[Finding]:
    """One case ran on devices of different kinds."""
    mixed = [case for case in study.measured if len(set(case.identity.device_names)) > 1]
    if mixed:
        kinds = some(dict.fromkeys(name for case in mixed for name in case.identity.device_names), 5)
        sentence = (
            f"{count(len(mixed), 'case')} ran on mixed devices ({kinds}): in each update all wait for the slowest, "
            "so the series shows the devices, not the scaling"
        )
        yield Finding("mixed-devices", "error", sentence, names(mixed))


def super_linear(study: Study) -> Iterator[Finding]:
    """Speed-up above the number of devices: noise until shown otherwise."""
    points = [(series, point) for series in study.series for point in series.points if point.efficiency.value > _LINEAR]
    single = [(s, p) for s, p in points if p.efficiency.low is None]
    if single:
        sentence = (
            f"{count(len(single), 'point')} above linear speed-up, {_without_interval(study, single)} "
            f"({_worst(single)}): without repeats that is noise, or a baseline that was slow by chance"
        )
        yield Finding("super-linear", "warning", sentence, tuple(point.case for _, point in single))
    within = [(s, p) for s, p in points if p.efficiency.low is not None and p.efficiency.low <= _LINEAR]
    if within:
        sentence = (
            f"{count(len(within), 'point')} above linear speed-up, within noise ({_worst(within)}): read them as linear"
        )
        yield Finding("super-linear", "note", sentence, tuple(point.case for _, point in within))
    beyond = [(s, p) for s, p in points if p.efficiency.low is not None and p.efficiency.low > _LINEAR]
    if beyond:
        sentence = (
            f"{count(len(beyond), 'point')} above linear speed-up, beyond noise ({_worst(beyond)}): the baseline does "
            "something that the others do not, so find out what before quoting it"
        )
        yield Finding("super-linear", "warning", sentence, tuple(point.case for _, point in beyond))


def growing_batch(study: Study) -> Iterator[Finding]:
    """Strong scaling in which every update sees more images: another training run, not the same one sooner."""
    grown = [(line, sizes) for line in study.lines if line.mode == "strong" and len(set(sizes := _batches(line))) > 1]
    for said in (False, True):
        lines = [(line, sizes) for line, sizes in grown if (line.fixed == "per_device") is said]
        if lines:
            line, sizes = max(lines, key=lambda item: max(item[1]) / min(item[1]))
            claim = "strong scaling with the batch per device fixed" if said else "called strong scaling"
            sentence = (
                f"{count(len(lines), 'series')} {claim}: the global batch grows with the devices ({span(sizes)} in "
                f"{line.label}), so the updates per epoch fall and each point trains differently"
            )
            cases = tuple(name for item, _ in lines for name in names(item.measured))
            yield Finding("growing-batch", "note" if said else "warning", sentence, cases)


def _batches(line: Line) -> list[int]:
    sizes = [case.identity.global_batch_size for case in line.measured]
    return [size for size in sizes if size is not None]


def missing_points(study: Study) -> Iterator[Finding]:
    """Cases of a series that have no result; what is left may look better than the system is."""
    for line in study.lines:
        lost = [case for case in line.cases if not case.ok]
        if lost and line.measured:
            reasons = ", ".join(f"{case.identity.world_size} ({case.records[-1].outcome})" for case in lost)
            sentence = f"{line.label}: no result at world size {reasons}; the curve shows only what worked"
            yield Finding("missing-points", "warning", sentence, names(lost))


def forward_varies(study: Study) -> Iterator[Finding]:
    """Forward takes different times although every device does the same work."""
    for line in study.lines:
        same = [case for case in line.cases if _forward(case) and _equal_work(case, line)]
        times = [time * 1e3 for case in same if (time := _forward(case))]
        if len(times) > 1 and max(times) / min(times) - 1 > _SAME_WORK_SPREAD:
            sentence = (
                f"{line.label}: forward takes {span(times, ' ms')} ({max(times) / min(times) - 1:.0%} apart) although "
                "every device does the same work: this much varies from run to run, or devices disturb each other, and "
                "differences between world sizes that are smaller show nothing"
            )
            yield Finding("forward-varies", "warning", sentence, names(same))


def comm_not_hidden(study: Study) -> Iterator[Finding]:
    """Collectives that run while nothing else does."""
    bare = []
    for case in study.measured:
        exposed, total, update = _communication(case)
        if exposed and total and exposed >= (1 - _HIDDEN) * total and exposed >= _SEEN * update:
            bare.append((exposed, update, case))
    if bare:
        exposed, update, case = max(bare, key=lambda item: item[0] / item[1])
        sentence = (
            f"all-reduce is not hidden behind backward in {count(len(bare), 'case')}: up to {exposed * 1e3:.3g} ms of "
            f"an update of {update * 1e3:.4g} ms ({case.name}), in which the device does nothing else"
        )
        yield Finding("comm-not-hidden", "warning", sentence, names([case for _, _, case in bare]))


RULES = (
    baseline_data,
    baseline_precision,
    baseline_device,
    baseline_node,
    mixed_devices,
    super_linear,
    growing_batch,
    missing_points,
    forward_varies,
    comm_not_hidden,
)


def _differs(
    study: Study, rule: str, what: str, of: Callable[[Case], object], severity: str = "error"
) -> Iterator[Finding]:
    for line in study.lines:
        values = {case.name: value for case in line.measured if (value := of(case)) is not None}
        if len(set(values.values())) > 1:
            base = line.measured[0]
            seen = some(dict.fromkeys(values.values()))
            sentence = (
                f"{line.label}: the points come from different {what} ({seen}; the baseline, {base.name}: "
                f"{of(base) or 'not known'}), so their ratio is no speed-up"
            )
            yield Finding(rule, "error" if severity == "error" else "warning", sentence, tuple(values))


def _device(case: Case) -> object:
    kinds = set(case.identity.device_names)
    return kinds.pop() if len(kinds) == 1 else None


def _machine(case: Case) -> object:
    """The CPU's model stands for the machine: hosts of one kind may differ in name only."""
    cpu = (case.first.environment or {}).get("cpu") or {}
    return cpu.get("model") if isinstance(cpu, dict) else None


def _without_interval(study: Study, points: list[tuple[ScalingSeries, ScalingPoint]]) -> str:
    """Why these points have no interval: who ran once, they or their baseline."""
    runs = {case.name: len(case.rates) for case in study.cases}
    if all(runs[point.case] == 1 for _, point in points):
        return "each from single runs" if all(runs[s.baseline] == 1 for s, _ in points) else "which ran once"
    if all(runs[series.baseline] == 1 for series, _ in points):
        return "beside a baseline that ran once"
    return "with single or identical runs on one side"


def _worst(points: list[tuple[ScalingSeries, ScalingPoint]]) -> str:
    series, point = max(points, key=lambda item: item[1].efficiency.value)
    return f"most: {point.speedup.value:.3g} times at {point.world_size} devices in {series.label}"


def _forward(case: Case) -> float | None:
    """Mean time in forward; None where communication may hide in it."""
    pure = case.identity.world_size == 1 or case.identity.engine in (None, "single", "ddp")
    found = [a for a in attributions(case.measurements) if a.method == "trace" or pure]
    parts = [a.seconds["forward"] for a in found if "forward" in a.seconds]
    return sum(parts) / len(parts) if parts else None


def _equal_work(case: Case, line: Line) -> bool:
    """As many images per device and update as the baseline; where no source says, it is the table's own claim."""
    a, b = case.identity, line.cases[0].identity
    return (a.micro_batch_size, a.grad_accum_steps) == (b.micro_batch_size, b.grad_accum_steps)


def _communication(case: Case) -> tuple[float, float, float]:
    """Exposed and total time in collectives, and the whole update; means over the runs that know all of them."""
    rows = [
        (m.attribution.seconds["exposed_comm"], m.communication.seconds_per_update, sum(m.attribution.seconds.values()))
        for m in case.measurements
        if m.attribution and "exposed_comm" in m.attribution.seconds and m.communication.seconds_per_update
    ]
    if not rows:
        return 0.0, 0.0, 0.0
    exposed, total, update = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return exposed, total, update
