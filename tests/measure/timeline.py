"""Makes the JSON of a profiler's trace by hand: times in microseconds from BASE_NS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_000_000_000_000_000


def ns(microseconds: float) -> int:
    return BASE_NS + round(microseconds * 1000)


class Timeline:
    """What a GPU (or the CPU) did. A kernel is launched `lead` before it begins unless said otherwise."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def event(self, category: str, name: str, begin: float, end: float, tid: int = 1, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin, "tid": tid, "pid": 1}
        self.events.append({**event, "args": args})

    def kernel(
        self, begin: float, end: float, launched: float, name: str = "gemm", category: str = "kernel", device: int = 0
    ) -> None:
        self._correlation += 1
        self.event(category, name, begin, end, tid=7, correlation=self._correlation, device=device, stream=7)
        self.event("cuda_runtime", "cudaLaunchKernel", launched, launched + 3, correlation=self._correlation)

    def nccl(self, begin: float, end: float, launched: float, name: str = "AllReduce_Sum_f32_RING_LL") -> None:
        self.kernel(begin, end, launched, f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)")

    def copy(self, begin: float, end: float, launched: float, name: str = "Memcpy HtoD (Pinned -> Device)") -> None:
        self.kernel(begin, end, launched, name, "gpu_memcpy")

    def synchronise(self, begin: float, end: float) -> None:
        self.event("cuda_runtime", "cudaDeviceSynchronize", begin, end)

    def write(self, path: Path) -> None:
        whole = {"baseTimeNanoseconds": BASE_NS, "traceEvents": self.events}
        path.write_text(json.dumps(whole), encoding="utf-8")


class FakeProfile:
    """Stands for torch.profiler.profile."""

    def __init__(self, timeline: Timeline | str) -> None:
        self.timeline = timeline

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None:
        if isinstance(self.timeline, str):
            Path(path).write_text(self.timeline, encoding="utf-8")
        else:
            self.timeline.write(Path(path))
