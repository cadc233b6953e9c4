"""How long the rest of a study may take: from its own records, else a guess that is said to be one. Torch-free."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable

from vitscale.config.study import StudyConfig
from vitscale.errors import VitscaleError
from vitscale.estimate.vit import expected_classes, shape_of, training_flops
from vitscale.hardware import peak_flops
from vitscale.results.record import Record
from vitscale.study.expand import Case, train_images
from vitscale.study.machine import Machine

# Rough, for a first guess only: what training reaches on most machines, and how long processes take to start.
_CPU_FLOPS_PER_CORE = 15e9
_GPU_SHARE_OF_PEAK = 0.25
_GPU_FLOPS = 10e12  # where the peak is not known
_START_S = {"cpu": 8.0, "cuda": 20.0}
_START_PER_PROCESS_S = 3.0
_DEEPSPEED_S = 4.0
_COMPILE_S = 60.0


class Forecast:
    """Seconds of each of a study's cases. Grows with the study: `add` each record."""

    def __init__(
        self, study: StudyConfig, machine: Machine, cases: Iterable[Case], records: Iterable[Record] = ()
    ) -> None:
        self._study, self._machine = study, machine
        self._guesses = {case.name: self._guess(case) for case in cases}
        self._by_case: dict[str, list[float]] = defaultdict(list)
        self._scale = 1.0  # by how much the guesses were off where that is known
        for record in records:
            self.add(record)

    @property
    def measured(self) -> bool:
        """Whether any case has been timed."""
        return bool(self._by_case)

    def add(self, record: Record) -> None:
        """Learn from a record; a case that failed early says nothing of how long it takes."""
        if record.outcome not in ("ok", "timeout") or record.seconds is None or record.case not in self._guesses:
            return
        self._by_case[record.case].append(record.seconds)
        ratios = [statistics.median(seen) / self._guesses[name] for name, seen in self._by_case.items()]
        self._scale = statistics.median(ratios)

    def seconds(self, case: Case) -> float:
        """Of one repeat: this case's own time if it has run, else the guess, scaled by how other guesses turned out."""
        if own := self._by_case.get(case.name):
            return statistics.median(own)
        return self._scale * self._guesses[case.name]

    def _guess(self, case: Case) -> float:
        start = _START_S[self._machine.device_type]
        if self._machine.device_type == "cpu":  # processes that start share the cores
            start += _START_PER_PROCESS_S * case.world_size
        if case.decisions is not None:
            start += _DEEPSPEED_S if case.decisions.engine == "deepspeed" else 0.0
            start += _COMPILE_S if case.decisions.fast.compile else 0.0
        return start + self._work(case)

    def _work(self, case: Case) -> float:
        try:
            flops = training_flops(shape_of(case.config.model, expected_classes(case.config.model, case.config.data)))
        except VitscaleError:
            flops = None
        return 0.0 if flops is None else flops * self._images(case) / self._rate(case)

    def _images(self, case: Case) -> float:
        measure, data = self._study.measure, case.config.data
        batch = case.decisions.batch.global_batch_size if case.decisions else 0
        if measure.updates is not None:
            return batch * (measure.warmup_updates + measure.updates + measure.trace_updates)
        images = train_images(data) or data.synthetic_size
        return (measure.epochs or 1) * min(images, data.train_limit or images)

    def _rate(self, case: Case) -> float:
        if self._machine.device_type == "cpu":
            return _CPU_FLOPS_PER_CORE * min(case.world_size, self._machine.cores)
        peak = peak_flops(self._machine.facts.cuda_names[0], case.config.precision.compute)
        return case.world_size * (_GPU_FLOPS if peak is None else _GPU_SHARE_OF_PEAK * peak)
