"""Process groups, ranks, devices, meshes and seeds. After launch, the only reader of RANK and WORLD_SIZE.

In: the environment that a launcher left. Out: a World, which all layers above are handed.
"""

from __future__ import annotations

import datetime
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from vitscale.errors import DeviceError, RunFailed
from vitscale.launch.failure import as_named, first_line

T = TypeVar("T")

# Long enough for rank 0 to hash and convert a large checkpoint while the others wait.
GROUP_TIMEOUT = datetime.timedelta(minutes=30)


_ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@dataclass(frozen=True)
class World:
    """This rank's place among all ranks. `control` is a gloo group for flags, apart from the gradients' traffic."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    control: dist.ProcessGroup | None = field(default=None, repr=False)

    @property
    def grouped(self) -> bool:
        """Whether a process group exists (also with one process, where the engine needs one)."""
        return self.control is not None

    @property
    def main(self) -> bool:
        """Whether this is the rank that speaks to people and writes files."""
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place; returns the tensor."""
        if self.grouped and self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.grouped:
            dist.barrier(group=self.control)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. Collective, on the host."""
        if not self.grouped or self.world_size == 1:
            return flag
        tensor = torch.tensor(float(flag))
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.control)
        return bool(tensor.item())

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable value on all ranks. Collective."""
        if not self.grouped or self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """All ranks' picklable values, by rank, on every rank. Collective."""
        if not self.grouped or self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, on all ranks; its failure ends all ranks. Collective."""
        value: T | None = None
        failure: Exception | None = None
        if self.main:
            try:
                value = work()
            except Exception as error:  # the others wait for word of it
                failure = error
        named = None if failure is None else as_named(failure) or RunFailed(f"rank 0 failed: {first_line(failure)}")
        value, named = self.broadcast((value, named))
        if failure is not None:
            raise failure
        if named is not None:
            raise named
        return value

    def mesh(self) -> DeviceMesh:
        """The device mesh with one axis, `data`, over all ranks."""
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("data",))


def environment_ranks() -> tuple[int, int, int]:
    """(rank, world size, local rank) as the launcher set them; (0, 1, 0) without a launcher."""
    env = os.environ
    return int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1)), int(env.get("LOCAL_RANK", 0))


def pick_device(kind: str | None, local_rank: int) -> torch.device:
    """The device of a local rank; kind is "cpu", "cuda" or None (CUDA where there is one).

    Raises DeviceError where it does not exist or where torch is a ROCm build, which is not supported.
    """
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if torch.version.hip is not None:
        raise DeviceError("this torch is a ROCm build, which vitscale does not support; use --device cpu")
    if not torch.cuda.is_available():
        raise DeviceError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"local rank {local_rank} has no GPU: this host shows {torch.cuda.device_count()}; lower --nproc"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def joined(kind: str | None, *, group: bool) -> Iterator[World]:
    """Join the other ranks and leave them properly; with `group` a process group is made for one process as well."""
    rank, world_size, local_rank = environment_ranks()
    device = pick_device(kind, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not group and world_size == 1:
        yield World(rank, world_size, local_rank, device)
        return
    added = {name: value for name, value in _ALONE.items() if name not in os.environ} if world_size == 1 else {}
    os.environ.update(added)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    device_id = device if device.type == "cuda" else None
    dist.init_process_group(backend, timeout=GROUP_TIMEOUT, device_id=device_id)
    control = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    assert isinstance(control, dist.ProcessGroup)
    try:
        yield World(rank, world_size, local_rank, device, control)
        dist.barrier(group=control)  # gloo aborts now and then when a rank leaves before the others are done
    except BaseException:
        # With NCCL this would wait for ranks that sit in a collective: the process ends, and the launcher the others.
        if world_size == 1 or device.type == "cpu":
            dist.destroy_process_group()
        raise
    else:
        dist.destroy_process_group()
    finally:
        for name in added:  # what this process starts later is no rank of this group
            os.environ.pop(name, None)


def seed_everything(seed: int) -> None:
    """Seed every global generator. Training itself draws from functions of (seed, update, sample), not from these."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_deterministic() -> None:
    """Bit-equal repeats on this machine: deterministic kernels only (torch raises where none exists)."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


class StopRequest:
    """SIGTERM, agreed on by all ranks at the same update.

    Ranks get the signal at different moments, so each `poll` sums the flags of the poll before: the exchange runs
    beside the update and no device waits for it. Every rank must poll equally often.
    """

    def __init__(self, world: World) -> None:
        self._shared = world.control if world.world_size > 1 else None
        self._asked = False
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._asked = True

    def poll(self) -> bool:
        """Whether all ranks now know that one was asked to stop."""
        if self._shared is None:
            return self._asked
        stop = self._settle()
        flag = torch.tensor(float(self._asked))
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._shared, async_op=True)
        assert work is not None
        self._pending = (work, flag)
        return stop

    def _settle(self) -> bool:
        if self._pending is None:
            return False
        work, flag = self._pending
        self._pending = None
        work.wait()
        return bool(flag.item())

    def close(self) -> None:
        """Wait for the last exchange and give the signal back."""
        self._settle()
        signal.signal(signal.SIGTERM, self._before)
