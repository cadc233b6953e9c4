"""One rank of a training whose slowness is known: `python -m measure_worker FOLDER`.

Digits with DDP under a meter, each phase slowed: loader, copy, forward and optimizer sleep, and backward ends with an
large all-reduce to which rank 1 comes late (DDP's own reduction is off, so that it is the only one). Out (rank 0):
the meter's result, and how long everything took by each rank's own clock: what was slowed over the counted updates,
the all-reduce over the traced ones, beside what the trace says of these.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vitscale.config.load import load_config
from vitscale.data.feed import Reader, Stager
from vitscale.distributed import environment_ranks
from vitscale.engine.native import NativeEngine
from vitscale.launch.child import run_rank
from vitscale.measure import shares
from vitscale.measure.intervals import Intervals
from vitscale.measure.meter import LEAD_IN, Meter
from vitscale.measure.trace import Trace
from vitscale.run import train
from vitscale.study.case import load_payload, save_result

WARMUP, COUNTED, TRACED = 2, 10, 10
Times = dict[str, list[float]]


class Slowness:
    """Wraps what the phases call. sleeps: phase -> seconds. times: how long each call of what it wraps took."""

    def __init__(self, sleeps: dict[str, float], num_bytes: int, rank: int) -> None:
        self.sleeps, self.rank = sleeps, rank
        self.times: Times = defaultdict(list)
        self.big = torch.zeros(num_bytes // 4)
        Reader.__call__ = self._slowed(Reader.__call__, "data_wait")
        Stager.start = self._slowed(Stager.start, "host_to_device")
        NativeEngine.weighted_loss = self._slowed(NativeEngine.weighted_loss, "forward")
        NativeEngine._step = self._slowed(NativeEngine._step, "optimizer")
        NativeEngine._reducing = without_reduction
        original = torch.Tensor.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self._exchange()

        torch.Tensor.backward = backward

    def _slowed(self, original: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def slowed(*args: Any, **kwargs: Any) -> Any:
            begin = time.monotonic()
            time.sleep(self.sleeps[phase])
            result = original(*args, **kwargs)
            self.times[phase].append(time.monotonic() - begin)
            return result

        return slowed

    def _exchange(self) -> None:
        if self.rank == 1:
            time.sleep(self.sleeps["straggler_wait"])
        begin = time.monotonic()
        dist.all_reduce(self.big)
        self.times["collective"].append(time.monotonic() - begin)

    def truth(self) -> dict[str, float]:
        """Mean seconds per update."""
        counted = slice(WARMUP, WARMUP + COUNTED)
        means = {name: statistics.fmean(times[counted]) for name, times in self.times.items()}
        return {**means, "collective": statistics.fmean(self.times["collective"][-TRACED:])}


def without_reduction(engine: NativeEngine, last: bool) -> AbstractContextManager[object]:
    """Stands for the engine's choice when DDP reduces."""
    return engine.module.no_sync()  # type: ignore[operator,union-attr,no-any-return]


class Told:
    """What the trace said of the traced updates: seconds per update of communication inside backward."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._original = shares.exposed_by_phase
        shares.exposed_by_phase = self._keep

    def _keep(self, trace: Trace, waits: Intervals | None) -> Any:
        found = self._original(trace, waits)
        first, last = trace.updates[0][0], trace.updates[-1][1]
        marks = [mark for mark in trace.marks if mark.phase == "backward" and first <= mark.begin < last]
        length_s = sum(mark.end - mark.begin for mark in marks) / 1e9 / len(trace.updates)
        self.seconds = {name: share * length_s for name, share in found["backward"].items()}
        return found


def main() -> int:
    folder = Path(sys.argv[1])
    rank, world_size, _ = environment_ranks()
    payload = load_payload(folder)
    slowness, told = Slowness(payload["sleeps"], payload["num_bytes"], rank), Told()
    brought: list[tuple[dict[str, float], dict[str, float]]] = []

    class Watching(Meter):
        def finish(self, gather: Callable[[Any], list[Any]]) -> None:
            super().finish(gather)
            brought.extend(gather((slowness.truth(), told.seconds)))

    meter = Watching(torch.device("cpu"), rank, world_size, warmup=WARMUP, updates=COUNTED, trace=TRACED)
    assert meter.total_updates == WARMUP + COUNTED + LEAD_IN + TRACED
    changes = [f"train.max_updates={meter.total_updates}", "eval.every_epochs=none", "log.every_updates=1000"]
    config = load_config("digits", changes)
    train(config, folder / "run", device="cpu", recorder=meter, observers=[], conclude=False)
    if rank == 0:
        truth, traced = zip(*brought, strict=True)
        save_result(folder, {"measurement": meter.result(), "truth": truth, "traced": traced})
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(main))
