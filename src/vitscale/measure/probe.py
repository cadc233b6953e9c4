"""A probe's measurements on one rank: matrix products, copies, an all-reduce over sizes, the model's step, the loader.

In: this rank's World, an engine, a loader. Out: figures with their spread (estimate.profile). All ranks measure at the
same time, as they will train. What follows from the figures is arithmetic and stands in estimate; who starts the ranks
is study.probe_worker's business. Times are the host's monotonic clock around a synchronised device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.distributed as dist

from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.data.feed import READ_AHEAD
from vitscale.data.loader import TrainLoader
from vitscale.distributed import World
from vitscale.engine.base import Engine
from vitscale.estimate.profile import AllReduce, Spread, StepTimes, spread
from vitscale.phases import NullRecorder, Phase

KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, *(MIB * 2**power for power in range(9)))  # up to 256 MiB
NETWORK_S = 20.0  # for all sizes; what does not fit is left out
_FEWEST, _MOST = 3, 20  # repeats of one size
_SIZE_S = 1.0  # for the repeats of one size, beyond the fewest
_FREE_SHARE = 0.25  # of a device's free memory that a message may take
_RATE_S = 0.3  # for each matrix rate and each copy
_MOST_STEPS = 30
_CHUNKS = 5
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def matrix_rates(device: torch.device) -> dict[str, Spread]:
    """FLOP/s of square matrix products, a multiply-add counted as 2."""
    size = 4096 if device.type == "cuda" else 512
    rates = {}
    for name, dtype in _DTYPES.items():
        left = torch.ones(size, size, device=device, dtype=dtype)
        times = _repeat(lambda left=left: torch.mm(left, left), device)  # type: ignore[misc]
        rates[name] = spread([2 * size**3 / seconds for seconds in times])
    return rates


def copy_rate(device: torch.device) -> Spread:
    """Bytes/s read and written by a copy within the device's memory."""
    source = torch.ones((256 if device.type == "cuda" else 64) * MIB, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return spread([2 * source.nbytes / seconds for seconds in _repeat(lambda: target.copy_(source), device)])


def host_to_device_rate(device: torch.device) -> Spread | None:
    """Bytes/s from pinned memory; None on a CPU, where nothing is copied."""
    if device.type != "cuda":
        return None
    source = torch.ones(64 * MIB, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device=device)
    return spread([source.nbytes / seconds for seconds in _repeat(lambda: target.copy_(source), device)])


def _repeat(work: Callable[[], object], device: torch.device) -> list[float]:
    """Times of single runs, the first left out; three at least, then as long as there is time."""
    work()
    times: list[float] = []
    began = _now(device)
    while len(times) < _FEWEST or (len(times) < _MOST and time.monotonic() - began < _RATE_S):
        start = _now(device)
        work()
        times.append(_now(device) - start)
    return times


def all_reduce_times(world: World, *, budget_s: float = NETWORK_S, sizes: Sequence[int] = SIZES) -> list[AllReduce]:
    """Time of an all-reduce of each size, through the backend of training, as far as they fit into `budget_s`.

    Collective. Rank 0's clock decides, so that all ranks stop at the same size. The slowest rank of each repeat counts.
    """
    if world.world_size == 1:
        return []
    began = time.monotonic()
    done: list[AllReduce] = []
    for size in sizes:
        expected = done[-1].seconds.value * size / done[-1].num_bytes if done else 0.0
        left = budget_s - (time.monotonic() - began)
        fits = world.broadcast((_FEWEST + 1) * expected < left)
        if not fits or world.any(size > _FREE_SHARE * _free_bytes(world.device)):
            break
        done.append(_all_reduce(world, size, expected))
    return done


def _all_reduce(world: World, size: int, expected: float) -> AllReduce:
    tensor = torch.zeros(size // 4, device=world.device)
    dist.all_reduce(tensor)  # the first one sets up connections and buffers
    repeats = world.broadcast(min(_MOST, max(_FEWEST, int(_SIZE_S / expected) if expected else _MOST)))
    times = []
    for _ in range(repeats):
        world.barrier()
        start = _now(world.device)
        dist.all_reduce(tensor)
        times.append(_now(world.device) - start)
    slowest = [max(column) for column in zip(*world.gather(times), strict=True)]
    return AllReduce(num_bytes=size, seconds=spread(slowest))


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**33


class PhaseTimes(NullRecorder):
    """A recorder that waits for the device at the edges of each phase, so that its time is the phase's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Context manager around one phase."""
        return self._timed(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = _now(self._device)
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + _now(self._device) - began


def step_times(
    engine: Engine, recorder: PhaseTimes, micro: MicroBatch, sizes: Sequence[int], world: World, *, budget_s: float
) -> tuple[StepTimes, ...]:
    """The engine's own update at each number of images, cut from `micro`, in turn, so that drift hits all alike.

    engine: of one process, with `recorder`. Ranks begin each round together, so that those of one host share it as in
    training; rank 0's clock decides how many there are.
    """
    batches = [_update_of(micro, size) for size in sizes]
    seen: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    began = time.monotonic()
    for turn in range(_MOST_STEPS):
        if turn > _FEWEST and not world.broadcast(time.monotonic() - began < budget_s):
            break
        for size, batch in zip(sizes, batches, strict=True):
            world.barrier()
            recorder.seconds = {}
            engine.train_batch(batch)
            if turn > 0:  # the first one allocates and tunes
                seen[size].append(recorder.seconds)
    return tuple(_step_of(size, updates) for size, updates in seen.items())


def _step_of(size: int, updates: list[dict[str, float]]) -> StepTimes:
    parts = {name: spread([update[name] for update in updates]) for name in ("forward", "backward", "optimizer")}
    return StepTimes(images=size, **parts)


def _update_of(micro: MicroBatch, size: int) -> UpdateBatch:
    draws = None if micro.draws is None else micro.draws[:size]
    part = MicroBatch(micro.images[:size], micro.targets[:size], micro.weights[:size], draws)
    return UpdateBatch((part,), size, 0, 0)


def loader_rate(loader: TrainLoader, *, budget_s: float = 3.0) -> Spread | None:
    """Images/s of this rank's own loader with nobody computing; None if an update takes longer than there is time."""
    updates = loader.iterate(0, 10**6)
    marks: list[tuple[float, int]] = []
    skipped = 1 + READ_AHEAD * loader.data.workers  # what the workers have read before anybody asked
    began = time.monotonic()
    try:
        for number, update in enumerate(updates):
            images = sum(len(micro.images) for micro in update.micro_batches)
            if number >= skipped:
                marks.append((_now(loader.device), images))
            enough = len(marks) > _CHUNKS and time.monotonic() - began > budget_s
            if enough or time.monotonic() - began > 2 * budget_s:
                break
    finally:
        updates.close()  # type: ignore[attr-defined]
    return _rate_of(marks)


def _rate_of(marks: list[tuple[float, int]]) -> Spread | None:
    """Rates over stretches of several updates: workers give back several at once."""
    stride = max(1, (len(marks) - 1) // _CHUNKS)
    edges = range(0, len(marks) - stride, stride)
    rates = [
        sum(images for _, images in marks[edge + 1 : edge + stride + 1]) / (marks[edge + stride][0] - marks[edge][0])
        for edge in edges
    ]
    return spread(rates) if rates else None


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()
