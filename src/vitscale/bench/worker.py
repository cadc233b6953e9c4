"""One row of a bench, as one rank: `python -m vitscale.bench.worker FOLDER`.

In: FOLDER/payload.json with a Case and a Spec. Out (rank 0): result.json with what the meter measured. Every row, ours
and the peers', is timed by the same meter over the same random images, which stay on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vitscale.assembly import assemble, open_data
from vitscale.bench.case import Case, Spec
from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.distributed import World, joined, seed_everything
from vitscale.errors import EXIT_OK
from vitscale.launch.child import run_rank
from vitscale.measure.environment import describe
from vitscale.measure.meter import Meter
from vitscale.phases import Recorder
from vitscale.study.case import load_payload, save_result
from vitscale.study.heartbeat import Heartbeat, Watched


def run_row(folder: Path) -> int:
    """Build the row's loop and measure it."""
    payload = load_payload(folder)
    case = Case(**{**payload["case"], "precision": tuple(payload["case"]["precision"])})
    spec = Spec(**payload["spec"])
    with joined(payload["device"], group=True) as world:
        seed_everything(0)
        environment = describe()  # before DeepSpeed sets variables of its own
        lengths = {name: payload[name] for name in ("warmup", "updates", "trace")}
        meter = Meter(world.device, world.rank, world.world_size, **lengths)
        watched = Watched(meter, Heartbeat(folder, world.rank))
        step = _step_of(case, spec, world, watched)
        assert meter.total_updates is not None
        for _ in range(meter.total_updates):
            step()
            watched.update(spec.micro_batch_size * world.world_size)
        watched.finish(world.gather)
        if world.main:
            save_result(folder, {"measurement": meter.result(), "environment": environment})
    return EXIT_OK


def _step_of(case: Case, spec: Spec, world: World, recorder: Recorder) -> Callable[[], Any]:
    if case.peer is not None:
        build = import_module(f"vitscale.bench.peers.{case.peer}").build
        return _marked(build(case, spec, world), recorder)
    assert case.config is not None
    config = build_config(case.config)
    decisions = decide(config, world_size=world.world_size, device_type=world.device.type)
    parts = assemble(config, decisions, world, open_data(config), recorder=recorder)
    batch = next(parts.loader.iterate(0, 1))
    return lambda: parts.engine.train_batch(batch)


def _marked(step: Callable[[], None], recorder: Recorder) -> Callable[[], None]:
    """A peer's update is one phase: its own loop marks none."""

    def marked() -> None:
        with recorder.phase("step"):
            step()

    return marked


if __name__ == "__main__":
    sys.exit(run_rank(lambda: run_row(Path(sys.argv[1]))))
