"""One DeepSpeed engine on one GPU: `python -m deepspeed_cuda_worker FOLDER STAGE CLIP`.

Out: result.json with what an update waited for, and what a loaded engine does after a saved one. One engine and stage
per process, because DeepSpeed changes torch for its whole process.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from engine_making import BF16, batch_of, config_of, model_of

from vitscale.config.decide import decide
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import World, joined
from vitscale.engine.base import Engine
from vitscale.engine.build import build_engine
from vitscale.launch.child import run_rank
from vitscale.losses import build_loss
from vitscale.study.case import save_result


def engine_on(world: World, stage: int, clip: float | None) -> Engine:
    config = config_of(
        {"engine": "deepspeed", "zero_stage": stage},
        precision=BF16,
        optim={"lr": 1e-2, "clip_grad": clip, "ema_decay": 0.5},
    )
    decisions = decide(config, world_size=1, device_type="cuda")
    return build_engine(model_of(config), build_loss(config.train), config, decisions, world, 20)


def batch_on(world: World, update: int) -> UpdateBatch:
    batch = batch_of(update, world)
    micros = tuple(
        MicroBatch(m.images.to(world.device), m.targets.to(world.device), m.weights.to(world.device))
        for m in batch.micro_batches
    )
    return UpdateBatch(micros, batch.num_samples, batch.window, batch.epoch)


def waits(engine: Engine, batch: UpdateBatch) -> list[str]:
    """What made the host wait in one update: torch's own list of synchronising calls, and DeepSpeed's explicit ones."""
    found: list[str] = []
    accelerator = __import__("deepspeed").accelerator.get_accelerator()
    accelerator.synchronize = lambda *_: found.append("synchronize")
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        engine.train_batch(batch)
        torch.cuda.set_sync_debug_mode("default")
    del accelerator.synchronize
    return found + [str(w.message) for w in said if "synchronizing CUDA operation" in str(w.message)]


def main(folder: Path, stage: int, clip: float | None) -> int:
    figures: dict[str, Any] = {}
    with joined("cuda", group=True) as world:
        engine = engine_on(world, stage, clip)
        for update in range(3):
            engine.train_batch(batch_on(world, update))
        figures["waits"] = waits(engine, batch_on(world, 3))
        engine.save(folder)
        went_on = [float(engine.train_batch(batch_on(world, update)).loss) for update in range(4, 7)]
        other = engine_on(world, stage, clip)
        other.load(folder)
        loaded = [float(other.train_batch(batch_on(world, update)).loss) for update in range(4, 7)]
        figures |= {"went_on": went_on, "loaded": loaded, "updates": [engine.update, other.update]}
        for each in (engine, other):
            each.close()
        save_result(folder, figures)
    return 0


if __name__ == "__main__":
    limit = None if sys.argv[3] == "none" else float(sys.argv[3])
    sys.exit(run_rank(lambda: main(Path(sys.argv[1]), int(sys.argv[2]), limit)))
