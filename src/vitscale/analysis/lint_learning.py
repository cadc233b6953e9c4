"""Rules about accuracy: what it was measured on, what it cost, and what changed beside the speed."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from vitscale.analysis.cases import Case
from vitscale.analysis.phrases import count, some, span
from vitscale.analysis.statistics import median_interval
from vitscale.analysis.study import Study, accuracies, names
from vitscale.analysis.summary import Finding

_FALL = 0.01


def train_accuracy(study: Study) -> Iterator[Finding]:
    """Accuracy on the images that the model was trained on."""
    trained = [case for case in study.learned if case.first.learning and case.first.learning.split == "train"]
    if trained:
        sentence = (
            f"the accuracy of {count(len(trained), 'case')} is training accuracy: it says how well the model fits what "
            "it saw, not what people call accuracy"
        )
        yield Finding("train-accuracy", "error", sentence, names(trained))


def accuracy_falls(study: Study) -> Iterator[Finding]:
    """A series that ends less accurate than it began: faster epochs that teach less are no speed-up."""
    for line in study.lines:
        points = [case for case in line.measured if accuracies(case)]
        if len(points) < 2:
            continue
        first, last = points[0], points[-1]
        before, after = (median_interval(accuracies(case), log=False) for case in (first, last))
        if before.value - after.value <= _FALL or not _apart(before.low, after.high):
            continue
        repeated = before.low is not None and after.high is not None
        sentence = (
            f"{line.label}: accuracy falls from {before.value:.3f} on {_devices(first)} to {after.value:.3f} on "
            f"{_devices(last)}{_updates(first, last)}; the speed-up buys a worse model"
            + ("" if repeated else " (single runs)")
        )
        yield Finding("accuracy-falls", "warning", sentence, names(points))


def fastest_learns_less(study: Study) -> Iterator[Finding]:
    """The case with the most images per second ends less accurate than another."""
    cases = [case for case in study.learned if case.rates]
    if len({_seen(case) for case in cases}) != 1 or any(line.mode == "weak" for line in study.lines):
        return  # cases that saw different data
    fastest = max(cases, key=lambda case: median(case.rates))
    best = max(cases, key=lambda case: median(accuracies(case)))
    low, high = (median_interval(accuracies(case), log=False) for case in (fastest, best))
    if high.value - low.value > _FALL and _apart(high.low, low.high):
        sentence = (
            f"the fastest case ({fastest.name}) ends at accuracy {low.value:.3f} and the best ({best.name}) at "
            f"{high.value:.3f}: compare their time to one accuracy, not their images/s"
        )
        yield Finding("fastest-learns-less", "warning", sentence, (fastest.name, best.name))


def lr_not_rescaled(study: Study) -> Iterator[Finding]:
    """The batch grows and the learning rate stays."""
    groups = [*(line.measured for line in study.lines), study.measured]
    for group in groups:
        known = [case for case in group if accuracies(case) and case.identity.lr is not None]
        batches = [case.identity.global_batch_size or 0 for case in known]
        rates = {case.identity.lr for case in known}
        unscaled = all(case.identity.lr_scaling in (None, "none") for case in known)
        if len(set(batches)) > 1 and len(rates) == 1 and unscaled:
            sentence = (
                f"the learning rate stays at {rates.pop():g} while the global batch goes from {min(batches)} to "
                f"{max(batches)}: larger batches are judged with a rate chosen for another"
            )
            yield Finding("lr-not-rescaled", "warning", sentence, names(known))
            return


def lr_unknown(study: Study) -> Iterator[Finding]:
    """Accuracy beside a learning rate that nobody wrote down."""
    silent = [case for case in study.learned if case.identity.lr is None or case.identity.warmup_updates is None]
    if silent:
        missing = [
            what
            for what, field in (("learning rate", "lr"), ("warm-up", "warmup_updates"))
            if any(getattr(case.identity, field) is None for case in silent)
        ]
        verb = "is" if len(missing) == 1 else "are"
        sentence = (
            f"{' and '.join(missing)} {verb} not recorded in {count(len(silent), 'case')}: whether they were rescaled "
            "with the batch cannot be checked, and accuracies of different batches cannot be compared"
        )
        yield Finding("lr-unknown", "warning", sentence, names(silent))


def target_missed(study: Study) -> Iterator[Finding]:
    """Runs that were to reach a target accuracy and did not."""
    missed = []
    for case in study.measured:
        aimed = [r.learning for r in case.ok if r.learning and r.learning.target is not None]
        short = [n for n in aimed if not any(point.accuracy >= (n.target or 0) for point in n.points)]
        if short:
            missed.append((case, len(short), len(aimed)))
    if missed:
        which = some(f"{case.name} ({short} of {aimed})" for case, short, aimed in missed)
        sentence = f"runs that did not reach the target accuracy: {which}; such a case has no time to the target"
        yield Finding("target-missed", "warning", sentence, names([case for case, _, _ in missed]))


RULES = (train_accuracy, accuracy_falls, fastest_learns_less, lr_not_rescaled, lr_unknown, target_missed)


def _apart(low: float | None, high: float | None) -> bool:
    """Whether two intervals leave a gap; where one has none, the values alone must do."""
    return low is None or high is None or low > high


def _seen(case: Case) -> tuple[object, ...]:
    """What images an accuracy stands for."""
    learning = case.first.learning
    return case.first.mode, case.identity.data_source, learning.split if learning else None


def _devices(case: Case) -> str:
    return count(case.identity.world_size, "device")


def _updates(first: Case, last: Case) -> str:
    """How the number of updates changed, where the records say."""
    epochs = [case.first.epoch_times.epochs if case.first.epoch_times else None for case in (first, last)]
    batches = [case.identity.global_batch_size for case in (first, last)]
    if all(batches) and batches[0] != batches[1]:
        equal = f" at equal epochs ({epochs[0]})" if epochs[0] and epochs[0] == epochs[1] else ""
        return f"{equal}, where the global batch goes from {batches[0]} to {batches[1]}"
    seen = [
        median([r.learning.points[-1].images for r in case.ok if r.learning and r.learning.points] or [0])
        for case in (first, last)
    ]
    return f" after {span(seen)} images" if all(seen) else ""
