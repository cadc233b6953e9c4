"""One case of a study, as one rank: `python -m vitscale.study.worker FOLDER`.

In: FOLDER/payload.json. Out (rank 0): result.json with what the meter measured, what the run said of itself, how it
learned and what it ran on; from every rank, a heartbeat. Training itself is run.train's, as for `vitscale train`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.data.sources import VAL_IS_TEST
from vitscale.distributed import environment_ranks, pick_device
from vitscale.engine.graph import DDP_WARMUP
from vitscale.errors import EXIT_OK
from vitscale.estimate.communication import gradient_bytes
from vitscale.estimate.pace import Straggler
from vitscale.launch.child import run_rank
from vitscale.measure.environment import describe
from vitscale.measure.meter import Meter
from vitscale.pacing import straggler_text
from vitscale.run import train
from vitscale.study.case import load_payload, save_result
from vitscale.study.heartbeat import Heartbeat, Watched

GIB = 2**30


def run_case(folder: Path) -> int:
    """Train the payload's config under a meter."""
    payload = load_payload(folder)
    rank, world_size, local_rank = environment_ranks()
    device = pick_device(payload["device"], local_rank)
    environment = describe() if rank == 0 else {}  # now: DeepSpeed sets variables that differ from case to case
    measure = payload["measure"]
    config = build_config(payload["config"])
    decisions = decide(config, world_size=world_size, device_type=device.type)
    meter = Meter(
        device,
        rank,
        world_size,
        warmup=warm_up(measure["warmup_updates"], decisions),
        updates=measure["updates"],
        trace=measure["trace_updates"],
        gradient_bytes=gradient_bytes(config, decisions),
        keep_trace=folder / f"rank{rank}.trace.json.gz" if measure["keep_traces"] else None,
    )
    if meter.total_updates is not None:  # what the trace needs besides is the meter's to say
        train_keys = config.train.model_copy(update={"max_updates": meter.total_updates})
        config = config.model_copy(update={"train": train_keys})
    collector = Collector(meter.trained_s)
    with memory_limited(payload["memory_limit_gib"], device):
        train(
            config,
            folder / "run",
            device=payload["device"],
            recorder=Watched(meter, Heartbeat(folder, rank)),
            observers=[collector],
            conclude=False,
        )
    if rank == 0:
        measurement = {
            **meter.result(),
            "losses": collector.losses,
            "skipped_updates": collector.skipped,
            "shares": collector.shares,
            "warnings": collector.warnings,
        }
        save_result(
            folder,
            {
                "info": collector.info,
                "measurement": measurement,
                "learning": collector.learning(measure["target_top1"]),
                "environment": environment,
            },
        )
    return EXIT_OK


def warm_up(asked: int, decisions: Decisions) -> int:
    """Updates that are not counted: at least until a whole-step graph has been captured, which takes seconds."""
    return max(asked, DDP_WARMUP + 1) if decisions.fast.cuda_graph else asked


def limit_memory(gib: float, device: torch.device) -> None:
    """Let this process allocate no more: of the GPU's memory, or on the CPU beyond what is loaded already."""
    size = int(gib * GIB)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), device)
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + size, hard))


def _data_bytes() -> int:
    """The data segment of this process now, as RLIMIT_DATA counts it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


@contextmanager
def memory_limited(gib: float | None, device: torch.device) -> Iterator[None]:
    """Under the limit, if there is one; a thread that finds no room for its stack is out of memory, too."""
    if gib is not None:
        limit_memory(gib, device)
    try:
        yield
    except RuntimeError as error:
        if gib is not None and "Resource temporarily unavailable" in str(error):
            raise MemoryError(f"no room for another thread under memory_limit_gib={gib:g}") from error
        raise


class Collector:
    """An Observer that keeps losses and evaluations, with the images and the training time that they took.

    trained_s: training time so far, by a clock that leaves out what measuring takes; without it the rows' own times.
    """

    def __init__(self, trained_s: Callable[[], float] | None = None) -> None:
        self._trained_s = trained_s
        self.info: dict[str, Any] = {}
        self.losses: list[float] = []
        self.skipped = 0
        self.shares: list[int] = []
        self.warnings: list[str] = []
        self._points: list[dict[str, Any]] = []
        self._seconds = 0.0
        self._images = 0

    def start(self, info: dict[str, Any]) -> None:
        """Keep what the run says of itself."""
        self.info = info
        self.shares = info.get("shares", [])

    def metrics(self, row: dict[str, Any]) -> None:
        """Rows of training come before the evaluation that ends their interval."""
        if row["kind"] == "train":
            seconds = row["step_time_s"] * len(row["losses"])
            self.losses += row["losses"]
            self.skipped = row["skipped"]
            self._seconds += seconds
            self._images += round(row["images_per_s"] * seconds)
        elif row["kind"] == "eval":
            seconds = self._seconds if self._trained_s is None else self._trained_s()
            point = {"update": row["update"], "images": self._images, "seconds": seconds}
            self._points.append({**point, "accuracy": row["top1"], "loss": row["loss"]})

    def event(self, row: dict[str, Any]) -> None:
        """Of unequal ranks only: their shares, and who kept the others waiting."""
        if row["kind"] == "balance":
            self.shares = row["shares"]
        elif row["kind"] == "straggler":
            found = Straggler(row["rank"], row["since"], row["cost_s"], row["step_s"])
            self.warnings.append(straggler_text(found, row["sm_clock_mhz"] or 0.0, row["temperature_c"] or 0.0))

    def close(self) -> None:
        """Nothing is open."""

    def learning(self, target: float | None) -> dict[str, Any] | None:
        """The fields of a record's Learning; None for a run that did not evaluate."""
        if not self._points:
            return None
        return {
            "split": "test" if VAL_IS_TEST in self.info["notes"] else "val",
            "points": self._points,
            "target": target,
            "final_accuracy": self._points[-1]["accuracy"],
        }


if __name__ == "__main__":
    sys.exit(run_rank(lambda: run_case(Path(sys.argv[1]))))
