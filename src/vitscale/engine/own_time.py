"""What a rank needs for its own part of an update: the forward of a first micro-step, without waiting for others.

In: the engine's forward, timed where somebody has asked. Out: (images, seconds), read without waiting for the device.
The forward of single, DDP and ZeRO 0 to 2 sends nothing, so it is timed as a whole. That of FSDP2 and ZeRO-3 waits
for other ranks' weights before each part of the model, so there the model's leaves are timed, which run when their
weights have come. By device events on CUDA, by the host's clock elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from vitscale.engine.edge import Edge


class OwnForward(NamedTuple):
    """Seconds of one forward of `images` images."""

    images: int
    seconds: float


class OwnTime:
    """Times a forward when asked. `leaves` is the model whose leaves are timed; None: the forward as a whole."""

    _nothing = nullcontext()

    def __init__(self, device: torch.device, leaves: nn.Module | None = None, *, possible: bool = True) -> None:
        """possible: False where no Python runs inside an update (a replayed graph), or hooks would break one."""
        self._cuda = device.type == "cuda"
        self._leaves, self._possible = leaves, possible
        self._asked = False
        self._images = 0
        self._spans: list[tuple[Edge, Edge]] = []

    def ask(self) -> None:
        """Time the next forward, unless one has not been read yet."""
        self._asked = self._possible and not self._spans

    def forward(self, images: int) -> AbstractContextManager[object]:
        """Context manager around a forward of `images` images."""
        if not self._asked:
            return self._nothing
        self._asked, self._images, self._spans = False, images, []
        return self._whole() if self._leaves is None else self._by_leaves(self._leaves)

    def take(self) -> OwnForward | None:
        """The time, once; None if nothing was timed or the device has not come to its end."""
        if not self._spans or not self._spans[-1][1].passed():
            return None
        seconds = sum(end.since(begin) for begin, end in self._spans)
        self._spans = []
        return OwnForward(self._images, seconds)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        begin = Edge(self._cuda)
        yield
        self._spans.append((begin, Edge(self._cuda)))

    @contextmanager
    def _by_leaves(self, model: nn.Module) -> Iterator[None]:
        """With hooks that are there for this forward only: after the engine's own hook that fetches the weights, and
        before the one that lets go of them."""
        begun: list[Edge] = []

        def enter(_module: nn.Module, _inputs: object) -> None:
            begun.append(Edge(self._cuda))

        def leave(_module: nn.Module, _inputs: object, _output: object) -> None:
            self._spans.append((begun.pop(), Edge(self._cuda)))

        leaves = [module for module in model.modules() if not any(True for _ in module.children())]
        hooks = [leaf.register_forward_pre_hook(enter) for leaf in leaves]
        hooks += [leaf.register_forward_hook(leave, prepend=True) for leaf in leaves]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def waits_in_forward(engine: str, zero_stage: int) -> bool:
    """Whether an engine's forward waits for other ranks."""
    return engine == "fsdp2" or (engine == "deepspeed" and zero_stage == 3)
