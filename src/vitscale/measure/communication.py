"""How fast the ranks exchange as many bytes as the gradients have: an all-reduce, measured apart from training.

In: the process group, still standing. Out: bus bandwidth. The bytes that an engine sends are closed forms
(estimate.communication); the time that updates spend in collectives comes from the trace.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from vitscale.estimate.communication import bus_bandwidth
from vitscale.phases import Gather

REPEATS = 5
SHARE = 0.5  # of the free memory of the fullest device that the probe may take


def all_reduce_bandwidth(num_bytes: int, device: torch.device, gather: Gather) -> float | None:
    """Bus bandwidth in bytes/s of an all-reduce of `num_bytes`; None without a group, or where memory is short.

    Collective. The slowest rank of each repeat counts, and the median of the repeats.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1 or num_bytes < 4:
        return None
    if min(gather(_free_bytes(device))) * SHARE < num_bytes:
        return None
    tensor = torch.zeros(num_bytes // 4, device=device)
    times = []
    for _ in range(REPEATS + 1):  # the first one sets up connections
        dist.barrier()
        begin = _now(device)
        dist.all_reduce(tensor)
        times.append(_now(device) - begin)
    slowest = [max(column) for column in zip(*gather(times[1:]), strict=True)]
    return bus_bandwidth(num_bytes, statistics.median(slowest), dist.get_world_size())


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return 2**33  # the host's memory is not the bottleneck of a probe


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
