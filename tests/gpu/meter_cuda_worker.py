"""Two ranks on two GPUs with work of known length: `python -m meter_cuda_worker FOLDER`.

Each update: kernels that only wait, on rank 1 more of them, then an all-reduce of 256 MiB. Out (rank 0): the
measurement, the length of rank 1's extra work and of the all-reduce alone, by device events.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from vitscale.distributed import joined
from vitscale.launch.child import run_rank
from vitscale.measure.meter import Meter
from vitscale.study.case import save_result

WORK, LATE = 40, 60  # kernels


def timed(action: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[5:])


def main() -> int:
    with joined("cuda", group=True) as world:
        big = torch.zeros(2**26, device=world.device)

        def work(kernels: int) -> None:
            for _ in range(kernels):
                torch.cuda._sleep(400_000)  # 0.2 ms or so

        late_s, reduce_s = timed(lambda: work(LATE)), timed(lambda: dist.all_reduce(big))
        meter = Meter(world.device, world.rank, world.world_size, warmup=5, updates=30, trace=12)
        assert meter.total_updates is not None
        for _ in range(meter.total_updates):
            with meter.phase("forward"):
                work(WORK)
            with meter.phase("backward"):
                work(WORK + (LATE if world.rank == 1 else 0))
                dist.all_reduce(big)
            with meter.phase("optimizer"):
                work(5)
            meter.update(8)
        meter.finish(world.gather)
        if world.main:
            result = {"measurement": meter.result(), "late_s": late_s, "all_reduce_s": reduce_s}
            save_result(Path(sys.argv[1]), result)
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(main))
