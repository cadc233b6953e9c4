"""Rules about single runs: warm-up, spread, drift, and what the device did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean, median

from vitscale.analysis.cases import Case
from vitscale.analysis.phrases import count, some
from vitscale.analysis.statistics import drift, relative_spread
from vitscale.analysis.study import Study, names
from vitscale.analysis.summary import Finding
from vitscale.results.possible import LEFT_OUT
from vitscale.results.record import Measurement

_MIN_UPDATES = 10
_SLOW_START = 1.5
_SPREAD = 0.2
_DRIFT = 0.05
_STALL = 1.1
_OTHER = 0.05


def warmup_in_mean(study: Study) -> Iterator[Finding]:
    """Means over epochs that hold, or may hold, the first one; and counted updates that begin slowly."""
    known = [(case, record.epoch_times) for case in study.measured for record in case.ok if record.epoch_times]
    inside = list(dict.fromkeys(case.name for case, times in known if times.includes_warmup))
    unsaid = list(dict.fromkeys(case.name for case, times in known if times.includes_warmup is None))
    if inside:
        sentence = f"the mean time of an epoch holds the first epoch, warm-up included, in {count(len(inside), 'case')}"
        yield Finding("warmup-in-mean", "warning", sentence, tuple(inside))
    if unsaid:
        sentence = (
            f"{count(len(unsaid), 'case')} give{'s' if len(unsaid) == 1 else ''} a mean time per epoch without saying "
            "whether the first epoch, with its warm-up, is in it"
        )
        yield Finding("warmup-in-mean", "warning", sentence, tuple(unsaid))
    slow = _cases(study, lambda m: bool(_enough(m)) and m.step_time_s[0] > _SLOW_START * median(m.step_time_s))
    if slow:
        sentence = (
            f"the first counted update is more than {_SLOW_START - 1:.0%} slower than the median in "
            f"{count(len(slow), 'case')}: the warm-up was too short"
        )
        yield Finding("warmup-in-mean", "warning", sentence, names(slow))


def few_updates(study: Study) -> Iterator[Finding]:
    """Medians over a handful of updates."""
    few = [
        case
        for case in _cases(study, lambda m: 0 < len(m.step_time_s) < _MIN_UPDATES)
        if case.first.source == "vitscale"  # a table gives one figure for all of its updates
    ]
    if few:
        sentence = f"fewer than {_MIN_UPDATES} updates were counted in {count(len(few), 'case')}"
        yield Finding("few-updates", "warning", sentence, names(few))


def spread(study: Study) -> Iterator[Finding]:
    """Updates of one run that differ widely."""
    wide = _cases(study, lambda m: bool(_enough(m)) and relative_spread(m.step_time_s) > _SPREAD)
    if wide:
        sentence = (
            f"the middle half of the updates spreads over more than {_SPREAD:.0%} of the median in "
            f"{count(len(wide), 'case')}: something else ran, or the updates are not alike"
        )
        yield Finding("wide-spread", "warning", sentence, names(wide))


def run_drift(study: Study) -> Iterator[Finding]:
    """Runs that end slower or faster than they began."""
    moved = _cases(study, lambda m: bool(_enough(m)) and abs(drift(m.step_time_s)) > _DRIFT)
    if moved:
        sentence = (
            f"the last third of a run is more than {_DRIFT:.0%} slower or faster than its first in "
            f"{count(len(moved), 'case')}: still warming up, or throttled by heat"
        )
        yield Finding("run-drift", "warning", sentence, names(moved))


def stalls(study: Study) -> Iterator[Finding]:
    """A mean far above the median: the run is longer than its median says."""
    stalled = _cases(study, lambda m: bool(_enough(m)) and fmean(m.step_time_s) > _STALL * median(m.step_time_s))
    if stalled:
        sentence = (
            f"some updates are so slow that the mean is more than {_STALL - 1:.0%} above the median in "
            f"{count(len(stalled), 'case')}: images/s here is that of the middle update, and a whole run takes longer"
        )
        yield Finding("stalls", "warning", sentence, names(stalled))


def other_time(study: Study) -> Iterator[Finding]:
    """Time that the attribution cannot explain."""
    vague = _cases(study, _unexplained)
    if vague:
        sentence = f"more than {_OTHER:.0%} of an update is time that no phase explains in {count(len(vague), 'case')}"
        yield Finding("other-time", "warning", sentence, names(vague))


def recompiles(study: Study) -> Iterator[Finding]:
    """torch.compile compiled again while it was measured."""
    again = _cases(study, lambda m: bool(m.recompiles))
    if again:
        which = some(f"{case.name} ({max(m.recompiles or 0 for m in case.measurements)})" for case in again)
        sentence = f"torch.compile compiled again during the counted updates: {which}"
        yield Finding("recompiles", "warning", sentence, names(again))


def throttled(study: Study) -> Iterator[Finding]:
    """GPUs that lowered their clocks."""
    hot = _cases(study, lambda m: any(state.throttled for state in m.device_state))
    if hot:
        sentence = f"a GPU lowered its clocks for heat or power in {count(len(hot), 'case')}"
        yield Finding("throttled", "warning", sentence, names(hot))


def skipped_updates(study: Study) -> Iterator[Finding]:
    """fp16 steps that were not applied."""
    skipped = _cases(study, lambda m: m.skipped_updates > 0)
    if skipped:
        sentence = (
            f"loss scaling skipped updates in {count(len(skipped), 'case')}: their time counts, and they taught nothing"
        )
        yield Finding("skipped-updates", "note", sentence, names(skipped))


def left_out(study: Study) -> Iterator[Finding]:
    """Figures of a run that were not believed, and so not read."""
    noted = [
        (case.name, note)
        for case in study.cases
        for record in case.records
        for note in record.notes
        if LEFT_OUT in note
    ]
    if noted:
        cases = tuple(dict.fromkeys(name for name, _ in noted))
        what = some(dict.fromkeys(note for _, note in noted))
        sentence = f"not all figures of {count(len(cases), 'case')} can be used: {what}"
        yield Finding("left-out", "warning", sentence, cases)


RULES = (
    left_out,
    warmup_in_mean,
    few_updates,
    spread,
    run_drift,
    stalls,
    other_time,
    recompiles,
    throttled,
    skipped_updates,
)


def _cases(study: Study, wrong: Callable[[Measurement], bool]) -> list[Case]:
    return [case for case in study.measured if any(wrong(m) for m in case.measurements)]


def _enough(measurement: Measurement) -> bool:
    return len(measurement.step_time_s) >= _MIN_UPDATES


def _unexplained(measurement: Measurement) -> bool:
    if not measurement.attribution:
        return False
    seconds = measurement.attribution.seconds
    return seconds.get("other", 0.0) > _OTHER * sum(seconds.values())
