"""Reading ahead: order kept, errors passed on, nothing left running."""

import threading

import numpy as np
import pytest
import torch
from data_making import memory_images

from vitscale.data.feed import Job, Reader, Stager, _in_thread, read_ahead


def jobs(count: int) -> list[Job]:
    place, codes, seeds = np.zeros((1, 3), np.float32), np.zeros((1, 0), np.int64), np.zeros(1, np.uint64)
    return [Job(np.array([n]), place, codes, seeds) for n in range(count)]


def numbers(job: Job) -> torch.Tensor:
    if job.indices[0] == 7:
        raise RuntimeError("seven")
    return torch.from_numpy(job.indices)


def test_a_thread_keeps_order_and_passes_errors_on() -> None:
    results = _in_thread(numbers, jobs(12))
    assert [int(next(results)) for _ in range(7)] == list(range(7))
    with pytest.raises(RuntimeError, match="seven"):
        next(results)
    assert [int(result) for result in _in_thread(numbers, jobs(2))] == [0, 1]


def test_a_closed_reader_leaves_no_thread() -> None:
    results = _in_thread(numbers, jobs(1000))
    next(results)
    assert any(thread.name.startswith("vitscale-reader") for thread in threading.enumerate())
    results.close()
    assert not any(thread.name.startswith("vitscale-reader") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_keep_order(workers: int) -> None:
    images = memory_images(9)
    read = torch.cat(list(read_ahead(Reader(images, None), jobs(9), workers, torch.device("cpu"))))
    assert torch.equal(read, images.pixels)


def test_staging_on_the_cpu_copies_nothing() -> None:
    tensor = torch.ones(3)
    stager = Stager(torch.device("cpu"))
    assert stager.finish(stager.start({"a": tensor}))["a"] is tensor
