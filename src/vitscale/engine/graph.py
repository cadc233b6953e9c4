"""A whole update as one CUDA graph: forward, backward, reduction, clipping and optimizer step in a single launch.

In: a function that computes an update from micro-batches and a scale, all on the device. Out: the same function, which
after some updates on a side stream is captured once and then replayed; the host does little more than copy the next
images into place. What changes between updates must be in tensors: images, targets, weights, draws, the scale and
the learning rate. Updates of fewer micro-steps than the others (at the end of an epoch) run uncaptured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from vitscale.data.batch import MicroBatch
from vitscale.phases import NULL, NullRecorder, Part, Phase, Recorder

Outputs = tuple[torch.Tensor, torch.Tensor | None]
Compute = Callable[[tuple[MicroBatch, ...], torch.Tensor | float], Outputs]

WARMUP = 3  # updates before the capture: lazy states, workspaces, compilation
DDP_WARMUP = 11  # DDP rebuilds its buckets and takes its own times in its first ten


class _Marks(NullRecorder):
    """Records phases as timing events inside the graph, which each replay sets anew."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Between two events on the stream of the capture."""
        begin, end = (
            torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        yield
        end.record()
        self.parts.append(Part(name, begin, end))


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    micros: tuple[MicroBatch, ...]
    scale: torch.Tensor
    outputs: Outputs
    parts: tuple[Part, ...]


class GraphedUpdate:
    """Replays `compute`. Outputs are copies: the next replay overwrites the graph's own.

    marks: what `compute` tells its phases to. parts: the phases of the last update; none if it was not replayed.
    """

    def __init__(self, compute: Compute, stream: torch.cuda.Stream, warmup: int) -> None:
        self._compute, self._stream, self._warmup, self._left = compute, stream, warmup, warmup
        self._layout: list[tuple[torch.Size, torch.dtype]] = []
        self._captured: _Captured | None = None
        self.marks: Recorder = NULL
        self.parts: tuple[Part, ...] = ()

    def __call__(self, micros: tuple[MicroBatch, ...], scale: float) -> Outputs:
        """One update."""
        self.parts = ()
        layout = [(t.shape, t.dtype) for micro in micros for t in _tensors(micro)]
        if len(layout) > len(self._layout):  # a resumed run may begin with the short update that ends an epoch
            self._layout, self._left, self._captured = layout, self._warmup, None
        if layout != self._layout:
            return self._aside(micros, scale)
        if self._left:
            self._left -= 1
            return self._aside(micros, scale)
        if self._captured is None:
            self._captured = self._capture(micros, scale)
        return self._replay(self._captured, micros, scale)

    def _aside(self, micros: tuple[MicroBatch, ...], scale: float) -> Outputs:
        """On the stream of the capture, so that what is allocated lazily belongs to it."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            outputs = self._compute(micros, scale)
        current.wait_stream(self._stream)
        return outputs

    def _capture(self, micros: tuple[MicroBatch, ...], scale: float) -> _Captured:
        """Record an update without running it. Other threads (the loader's) may go on using the device."""
        device = micros[0].images.device
        places = tuple(_copy(micro) for micro in micros)
        scale_place = torch.full((), scale, device=device)
        graph = torch.cuda.CUDAGraph()
        self.marks = marks = _Marks()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            outputs = self._compute(places, scale_place)
        self.marks = NULL
        return _Captured(graph, places, scale_place, outputs, tuple(marks.parts))

    def _replay(self, captured: _Captured, micros: tuple[MicroBatch, ...], scale: float) -> Outputs:
        places = [t for micro in captured.micros for t in _tensors(micro)]
        values = [t for micro in micros for t in _tensors(micro)]
        for place, value in zip(places, values, strict=True):
            place.copy_(value, non_blocking=True)
        captured.scale.fill_(scale)
        captured.graph.replay()
        self.parts = captured.parts
        loss, norm = captured.outputs
        return loss.clone(), None if norm is None else norm.clone()


def _copy(micro: MicroBatch) -> MicroBatch:
    draws = None if micro.draws is None else micro.draws.clone()
    return MicroBatch(micro.images.clone(), micro.targets.clone(), micro.weights.clone(), draws)


def _tensors(micro: MicroBatch) -> list[torch.Tensor]:
    return [t for t in (micro.images, micro.targets, micro.weights, micro.draws) if t is not None]
