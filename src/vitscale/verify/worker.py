"""One job of the proof, as one rank: `python -m vitscale.verify.worker FOLDER`.

In: FOLDER/payload.json. Out (rank 0): result.json with losses and gradient norms, and per variant a safetensors file
with the first update's gradients (as the optimizer's state holds them, so clipping and averaging are included) and
the final weights, gathered by timm's names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitscale.assembly import assemble, open_data
from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.distributed import World, joined
from vitscale.engine.base import Engine
from vitscale.errors import EXIT_OK
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result

# The state that is the gradient after the first update: momentum_buffer = g, exp_avg = (1 - beta1) g.
GRADIENT_STATE = {"sgd": "momentum_buffer", "adamw": "exp_avg"}


def run_job(folder: Path) -> int:
    """Run every variant of the payload in this process group."""
    payload = load_payload(folder)
    device = payload["device"]
    figures = {}
    with joined(device, group=True) as world:
        for run in payload["runs"]:
            figures[run["name"]] = _run_variant(run, world, folder)
        if world.main:
            save_result(folder, {"variants": figures})
    return EXIT_OK


def _run_variant(run: dict[str, Any], world: World, folder: Path) -> dict[str, Any]:
    config = build_config(run["config"])
    decisions = decide(config, world_size=world.world_size, device_type=world.device.type)
    parts = assemble(config, decisions, world, open_data(config), double=run["variant"]["double"])
    engine = parts.engine
    losses: list[float] = []
    norms: list[float | None] = []
    tensors: dict[str, torch.Tensor] = {}
    for batch in parts.loader.iterate(0, parts.plan.total_updates):
        output = engine.train_batch(batch)
        losses.append(world.sum(output.loss.double()).item())
        norms.append(None if output.grad_norm is None else float(output.grad_norm))
        if len(losses) == 1:
            tensors = _first_gradients(engine, config)
    tensors |= {f"weight/{name}": tensor for name, tensor in engine.gathered_parameters().items()}
    if world.main:
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{run['name']}.safetensors")
    engine.close()
    return {"losses": losses, "grad_norms": norms}


def _first_gradients(engine: Engine, config: RunConfig) -> dict[str, torch.Tensor]:
    key = GRADIENT_STATE[config.optim.name]
    return {f"gradient/{name}": state[key] for name, state in engine.gathered_optimizer_state().items()}


if __name__ == "__main__":
    sys.exit(run_rank(lambda: run_job(Path(sys.argv[1]))))
