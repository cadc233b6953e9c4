"""One session of a run for the resume tests: `python -m resume_worker FOLDER` as a rank of a group.

In: payload.json with a config, the run folder, and at which update to stop. Out (rank 0): the losses of this session's
updates, the samples of each window, and the gathered state right after loading and at the end, as safetensors.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from vitscale import run as run_module
from vitscale.config.load import build_config
from vitscale.data.loader import TrainLoader
from vitscale.engine.base import Engine
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result


def gathered(engine: Engine) -> dict[str, torch.Tensor]:
    state = {f"weight/{name}": t for name, t in engine.gathered_parameters().items()}
    state |= {f"ema/{name}": t for name, t in engine.gathered_parameters(ema=True).items()}
    for name, entries in engine.gathered_optimizer_state().items():
        state |= {f"optim/{name}/{key}": t for key, t in entries.items() if t.dim() > 0}
    return {key: tensor.contiguous() for key, tensor in state.items()}


def session(folder: Path) -> int:
    payload = load_payload(folder)
    losses, order = [], []
    kill_at = payload.get("kill_at")
    restore = run_module._Run._restore
    train = run_module.Trainer.fit
    iterate = TrainLoader.iterate

    def restored(self, engine, path):
        state = restore(self, engine, path)
        tensors = gathered(engine)
        if tensors and self.world.main:
            save_file(tensors, folder / "loaded.safetensors")
        return state

    def remembered(self, start, stop):
        for batch in iterate(self, start, stop):
            order.append([batch.window, self.sampler.window(batch.window).indices.tolist()])
            yield batch

    def fit(self):
        step = self.engine.train_batch

        def train_batch(batch):
            if kill_at is not None and self.engine.update == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            output = step(batch)
            losses.append(self.world.sum(output.loss.clone()).item())
            return output

        self.engine.train_batch = train_batch
        state = train(self)
        tensors = gathered(self.engine)
        if self.world.main:
            save_file(tensors, folder / "final.safetensors")
        return state

    run_module._Run._restore = restored
    run_module.Trainer.fit = fit
    TrainLoader.iterate = remembered
    config = build_config(payload["config"])
    run_module.train(config, Path(payload["run"]), device=payload.get("device", "cpu"), observers=[])
    if int(os.environ.get("RANK", "0")) == 0:
        save_result(folder, {"losses": losses, "order": order})
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: session(Path(sys.argv[1]))))
