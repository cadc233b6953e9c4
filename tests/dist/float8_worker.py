"""Updates with float8 layers as one rank of a group, products emulated: `python -m float8_worker FOLDER`.

In: payload.json with the `parallel` section. Out (rank 0): losses that go on after a save and after a load, whether
evaluation agrees over ranks, and the weights after three updates, which the test compares with engine single's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import engine_making
import torch
from engine_making import BF16, SGD, config_of, images_of, run_updates
from safetensors.torch import save_file

from vitscale.config import decide as decide_module
from vitscale.distributed import World, joined
from vitscale.engine.base import Engine
from vitscale.launch.child import run_rank
from vitscale.parallel import float8
from vitscale.study.case import load_payload, save_result

FLOAT8: dict[str, Any] = {"compute": "float8"}


def engine_of(parallel: dict[str, Any], world: World, precision: dict[str, Any]) -> Engine:
    return engine_making.engine_of(config_of(parallel, precision=precision, optim=SGD), world)


def logits(engine: Engine) -> torch.Tensor:
    with engine.evaluating():
        return engine.eval_forward(images_of(9)[0])


def main(folder: Path) -> int:
    parallel = load_payload(folder)["parallel"]
    float8.emulated = True
    decide_module._check_device = lambda *_: None  # which would refuse this CPU
    figures: dict[str, Any] = {}
    with joined("cpu", group=True) as world:
        for name, precision in (("float8", FLOAT8), ("bf16", BF16)):
            engine = engine_of(parallel, world, precision)
            figures[name] = list(run_updates(engine, world))
            weights = engine.gathered_parameters()
            if world.main:
                save_file({key: value.contiguous() for key, value in weights.items()}, folder / f"{name}.safetensors")
            if name == "float8":
                figures["notes"] = engine.notes
                engine.save(folder / "saved")
                figures["eval"] = world.gather(logits(engine).double().sum().item())
                figures["went_on"] = list(run_updates(engine, world))
            engine.close()
        world.barrier()
        other = engine_of(parallel, world, FLOAT8)
        other.load(folder / "saved")
        figures["loaded"] = list(run_updates(other, world))
        other.close()
        if world.main:
            save_result(folder, figures)
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(Path(sys.argv[1]))))
