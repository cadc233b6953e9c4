"""From read jobs to tensors on the device: worker processes, a read-ahead thread, pinned memory, a copy stream.

Knows nothing of epochs, ranks or augmentation. A job names samples and carries the draws they need, so a worker has
no state and any job can be run anywhere.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from vitscale.data.images import ImageSet
from vitscale.errors import DataError

READ_AHEAD = 2
Item = TypeVar("Item")


class Job(NamedTuple):
    """The images of one micro-batch, and what transforms them in either path: placement (B, 3) float32, codes (B, N)
    int64 of RandAugment, seeds (B,) uint64 for torchvision's own draws."""

    indices: NDArray[np.int64]
    placement: NDArray[np.float32]
    codes: NDArray[np.int64]
    seeds: NDArray[np.uint64]


SampleTransform = Callable[[torch.Tensor, NDArray[np.float32], NDArray[np.int64], int], torch.Tensor]


class Reader:
    """Runs one job: uint8 (B, C, h, w). Without a transform the set must be in memory, and is gathered."""

    def __init__(self, images: ImageSet, transform: SampleTransform | None) -> None:
        self.images = images
        self.transform = transform

    def __call__(self, job: Job) -> torch.Tensor:
        """The images of `job`, in its order."""
        if self.transform is None:
            assert self.images.pixels is not None
            return self.images.pixels[torch.from_numpy(job.indices)]
        rows = zip(job.indices, job.placement, job.codes, job.seeds, strict=True)
        read, transform = self.images.read, self.transform
        return torch.stack([transform(read(int(i)), place, codes, int(seed)) for i, place, codes, seed in rows])


class _JobDataset(Dataset[torch.Tensor | DataError]):
    """Jobs as the 'indices' of a data set. An error is returned, since DataLoader would bury its sentence."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __getitem__(self, job: Job) -> torch.Tensor | DataError:
        try:
            return self.reader(job)
        except DataError as error:
            return error


def read_ahead(reader: Reader, jobs: Iterable[Job], workers: int, device: torch.device) -> Iterator[torch.Tensor]:
    """The result of each job, in order: in `workers` processes, or for CUDA in a thread, or here and now."""
    pin = device.type == "cuda"
    if workers:
        yield from _in_processes(reader, jobs, workers, pin)
    elif pin:
        yield from _in_thread(lambda job: reader(job).pin_memory(), jobs)
    else:
        yield from map(reader, jobs)


def _in_processes(reader: Reader, jobs: Iterable[Job], workers: int, pin: bool) -> Iterator[torch.Tensor]:
    loader = DataLoader(
        _JobDataset(reader),
        batch_size=None,  # a job is a whole micro-batch
        sampler=jobs,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin,
        prefetch_factor=READ_AHEAD,
        generator=torch.Generator(),  # else DataLoader draws its base seed from the global generator
        multiprocessing_context="fork",  # shares the images in memory, and starts in milliseconds
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork beside threads; workers only read and transform, on one thread, without CUDA.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        results = iter(loader)
    for result in results:
        if isinstance(result, DataError):
            raise result
        yield result


def _as_it_is(item: Item) -> Item:
    return item


def _in_thread(run: Callable[[Job], torch.Tensor], jobs: Iterable[Job]) -> Iterator[torch.Tensor]:
    with ThreadPoolExecutor(1, "vitscale-reader") as pool:
        pending: deque[Future[torch.Tensor]] = deque()
        for job in jobs:
            pending.append(pool.submit(run, job))
            if len(pending) > READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def may_stay(pixels: torch.Tensor | None, device: torch.device) -> bool:
    """Whether a set's images may be kept on the GPU: where they take less than an eighth of the free memory."""
    if pixels is None or device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return pixels.nbytes < free / 8


def resident_pixels(pixels: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """A copy of a set's images on the GPU, if it may stay there; then only sample numbers travel at each update."""
    return pixels.to(device) if pixels is not None and may_stay(pixels, device) else None


class Staged(NamedTuple):
    """Tensors on their way to the device, and the event after which they are there (CUDA only)."""

    tensors: dict[str, torch.Tensor]
    arrived: torch.cuda.Event | None


class Stager:
    """Copies tensors to the device; on CUDA from pinned memory, on a stream of its own beside the computation.

    Where only numbers travel (beside=False) the current stream takes them: a second one would cost more host time
    than their copies take.
    """

    def __init__(self, device: torch.device, *, beside: bool = True) -> None:
        self.device = device
        cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if cuda and beside else None  # type: ignore[no-untyped-call]
        self._pin = cuda

    def start(self, tensors: dict[str, torch.Tensor]) -> Staged:
        """Begin the copies."""
        if self.stream is None:
            return Staged(self._copy(tensors), None)
        with torch.cuda.stream(self.stream):
            return Staged(self._copy(tensors), self.stream.record_event())

    def _copy(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not self._pin:
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}
        return {name: t.pin_memory().to(self.device, non_blocking=True) for name, t in tensors.items()}

    def finish(self, staged: Staged) -> dict[str, torch.Tensor]:
        """The tensors, safe to use on the current stream."""
        if staged.arrived is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(staged.arrived)
            for tensor in staged.tensors.values():
                tensor.record_stream(current)
        return staged.tensors
