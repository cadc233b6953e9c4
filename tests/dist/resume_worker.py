"""Sessions of runs for the resume tests, one after the other: `python -m resume_worker FOLDER` as a rank of a group.

In: payload.json with, for each session, a config, the run folder and maybe at which update to die. Out (rank 0): the
losses of each session's updates, the samples of each window, and the gathered state right after loading and at the end.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitscale import run as run_module
from vitscale.config.load import build_config
from vitscale.data.loader import TrainLoader
from vitscale.distributed import joined
from vitscale.engine.base import Engine
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result


def gathered(engine: Engine) -> dict[str, torch.Tensor]:
    state = {f"weight/{name}": t for name, t in engine.gathered_parameters().items()}
    state |= {f"ema/{name}": t for name, t in engine.gathered_parameters(ema=True).items()}
    for name, entries in engine.gathered_optimizer_state().items():
        state |= {f"optim/{name}/{key}": t for key, t in entries.items() if t.dim() > 0}
    return {key: tensor.contiguous() for key, tensor in state.items()}


class Session:
    """One `run.train` with its seams watched; what it saw goes into FOLDER/NAME.json and NAME-*.safetensors."""

    def __init__(self, folder: Path, name: str, payload: dict[str, Any]) -> None:
        self.folder, self.name = folder, name
        self.kill_at: int | None = payload.get("kill_at")
        self.config, self.run = build_config(payload["config"]), Path(payload["run"])
        self.losses: list[float] = []
        self.order: list[list[Any]] = []

    def train(self) -> None:
        restore, fit, iterate = run_module._Run._restore, run_module.Trainer.fit, TrainLoader.iterate
        run_module._Run._restore = lambda run, engine, path: self._restored(restore, run, engine, path)
        run_module.Trainer.fit = lambda trainer: self._fitted(fit, trainer)
        TrainLoader.iterate = lambda loader, start, stop: self._remembered(iterate, loader, start, stop)
        try:
            run_module.train(self.config, self.run, device="cpu", observers=[])
        finally:
            run_module._Run._restore, run_module.Trainer.fit, TrainLoader.iterate = restore, fit, iterate
        if os.environ["RANK"] == "0":
            (self.folder / f"{self.name}.json").write_text(json.dumps({"losses": self.losses, "order": self.order}))

    def _restored(self, restore, run, engine, path):
        state = restore(run, engine, path)
        self._save(engine, run.world, "loaded")
        return state

    def _remembered(self, iterate, loader, start, stop):
        for batch in iterate(loader, start, stop):
            self.order.append([batch.window, loader.sampler.window(batch.window).indices.tolist()])
            yield batch

    def _fitted(self, fit, trainer):
        step = trainer.engine.train_batch

        def train_batch(batch):
            if self.kill_at is not None and trainer.engine.update == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            output = step(batch)
            self.losses.append(trainer.world.sum(output.loss.clone()).item())
            return output

        trainer.engine.train_batch = train_batch
        state = fit(trainer)
        self._save(trainer.engine, trainer.world, "final")
        return state

    def _save(self, engine, world, when: str) -> None:
        tensors = gathered(engine)
        if world.main:
            save_file(tensors, self.folder / f"{self.name}-{when}.safetensors")


def sessions(folder: Path) -> int:
    with joined("cpu", group=True) as world:
        run_module.joined = lambda kind, group: nullcontext(world)  # one process group serves all sessions
        for name, payload in load_payload(folder)["sessions"].items():
            if "copy_of" in payload and world.main:
                shutil.copytree(payload["copy_of"], payload["run"])
            world.barrier()
            Session(folder, name, payload).train()
    if os.environ["RANK"] == "0":
        save_result(folder, {})
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: sessions(Path(sys.argv[1]))))
