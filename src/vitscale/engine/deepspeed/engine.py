"""The DeepSpeed engine: ZeRO stages 0 to 3 over a plain timm model, through DeepSpeed's public API and config.

In: a plain model on the CPU. DeepSpeed owns the optimizer step, clipping, loss scale and the checkpoint files; the
engine owns the accumulation boundary, the learning rate and the loss's weighting, so that an update is the same
update as everywhere else.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitscale.config.decide import Decisions, optimizer_pair
from vitscale.config.overrides import merge
from vitscale.config.run import RunConfig
from vitscale.data.batch import UpdateBatch
from vitscale.distributed import World
from vitscale.engine.base import LossFn, OptimizerState, StepOutput
from vitscale.engine.deepspeed.fused_adam import fused_adam
from vitscale.engine.deepspeed.masters import MasterWeights
from vitscale.engine.deepspeed.settings import deepspeed_settings, naming_refused_keys, steps_masters
from vitscale.engine.update import UpdateRules
from vitscale.errors import CheckpointError
from vitscale.optim.build import build_optimizer
from vitscale.optim.ema import Ema
from vitscale.optim.groups import ParamGroup, param_groups
from vitscale.parallel.apply import DTYPES, checkpoint_activations
from vitscale.phases import NULL, Recorder

TAG = "state"


class DeepSpeedEngine(UpdateRules):
    """engine deepspeed with zero_stage 0, 1, 2 or 3."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        config: RunConfig,
        decisions: Decisions,
        world: World,
        total_updates: int,
        recorder: Recorder = NULL,
        resume_from: Path | None = None,
    ) -> None:
        super().__init__(model, loss_fn, config, decisions, world, total_updates, recorder)
        deepspeed = import_deepspeed(world.device.type)
        from vitscale.engine.deepspeed.fragments import Fragments

        settings = deepspeed_settings(config, decisions)
        if resume_from and _saved_world_size(resume_from) != world.world_size and decisions.zero_stage:
            settings = merge(settings, {"checkpoint": {"load_universal": True}})
        model.to(world.device)
        checkpoint_activations(model, config.performance)
        self._parameters = dict(model.named_parameters())
        optimizer = self._build_optimizer(model)
        self._deepspeed = deepspeed
        with naming_refused_keys(config.deepspeed):
            self._engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        self.module = self._engine
        self._forget_first_step()
        if decisions.fast.compile:
            self._compile(model)
        self._fragments = Fragments(self._engine, self._parameters, decisions.zero_stage)
        self._aside: dict[str, torch.Tensor] = {}
        decay = config.optim.ema_decay
        self._ema = Ema(decay, self._fragments.local()) if decay else None

    def _build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """torch's; over fp32 masters under stage 0 in bf16, where the model is then cast here. Where DeepSpeed's own
        wrapper of stage 0 keeps the masters, its FusedAdam, because the wrapper is slow with any other."""
        config, device = self.config.optim, self.world.device.type
        groups = param_groups(model, config)

        def build(groups: list[ParamGroup]) -> torch.optim.Optimizer:
            return build_optimizer(groups, config, device_type=device)

        optimizer: torch.optim.Optimizer
        if steps_masters(self.config, self.decisions):
            optimizer = MasterWeights(groups, build, config.clip_grad)
            model.to(DTYPES[self.decisions.precision.params])
        elif self._wrapped_whole() and config.name == "adamw" and device == "cuda":
            optimizer = fused_adam(groups, config) or build(groups)
        else:
            optimizer = build(groups)
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # each update sets its own; see _forget_first_step
        return optimizer

    def _wrapped_whole(self) -> bool:
        """Whether DeepSpeed's wrapper of stage 0 keeps the masters."""
        whole = self.decisions.zero_stage == 0 and self.decisions.precision.params != "fp32"
        return whole and not steps_masters(self.config, self.decisions)

    def _compile(self, model: nn.Module) -> None:
        """Under stage 3 DeepSpeed's hooks stand around modules and would be traced, and traced again at every module:
        where its blocks are leaves (no hooks inside), what is compiled is what stands between the hooks."""
        leaf = self._deepspeed.utils.z3_leaf_module
        blocks = list(model.blocks)  # type: ignore[arg-type]
        if self.decisions.zero_stage == 3 and all(leaf(block) for block in blocks):
            for block in blocks:
                block.forward = torch.compile(block.forward, dynamic=False)
        else:
            self._engine.compile(compile_kwargs={"dynamic": False})  # DeepSpeed's own keeps its hooks out of the graph

    def _forget_first_step(self) -> None:
        """Under stage 0 below fp32 DeepSpeed steps once on zero gradients to allocate states. With a learning rate of
        0 that leaves the weights alone; the state it leaves would shift AdamW's bias correction by one update."""
        if self._wrapped_whole():
            optimizer = self._engine.basic_optimizer
            optimizer.state.clear()
            for group in optimizer.param_groups:
                group.pop("step", None)  # FusedAdam counts here

    def autocast(self) -> AbstractContextManager[object]:
        """DeepSpeed does its own in its forward."""
        return nullcontext()

    # --- one update -------------------------------------------------------------------------------------------

    def train_batch(self, batch: UpdateBatch) -> StepOutput:
        """Run all micro-steps and one optimizer step."""
        with self.recorder.phase("forward"):
            self.begin_update()
        with self.recorder.phase("optimizer"):
            self.set_learning_rate(self._engine.optimizer.param_groups)
        world_size = self.world.world_size
        scale = world_size / batch.num_samples  # DeepSpeed averages gradients over ranks
        loss = torch.zeros((), device=self.world.device)
        last = len(batch.micro_batches) - 1
        for index, micro in enumerate(batch.micro_batches):
            self._engine.set_gradient_accumulation_boundary(index == last)
            with self.recorder.phase("forward"):
                share = self.weighted_loss(micro, scale)
            with self.recorder.phase("backward"):
                self._engine.backward(share)
            with self.recorder.phase("optimizer"):
                norm = self._whole_norm() if index == last else None
                self._engine.step()
            loss = loss + share.detach() / world_size
        applied = self._engine.was_step_applied()
        if applied:
            if self._ema:
                with self.recorder.phase("optimizer"):
                    self._ema.follow(self._fragments.local(), self.update)
            self.update += 1
        return StepOutput(loss, self._grad_norm() if norm is None else norm, applied)

    def _grad_norm(self) -> torch.Tensor | None:
        norm = self._engine.get_global_grad_norm()
        if norm is None:
            return None
        # a float, or a tensor on the CPU where the optimizer is offloaded
        return torch.as_tensor(norm, dtype=torch.float32, device=self.world.device)

    def _whole_norm(self) -> torch.Tensor | None:
        """Under stage 0 in fp32 DeepSpeed clips without telling the norm; backward has reduced the gradients here."""
        whole = self.decisions.zero_stage == 0 and self.decisions.precision.params == "fp32"
        if not whole or self.config.optim.clip_grad is None:
            return None
        return nn.utils.get_total_norm([p.grad for p in self._parameters.values() if p.grad is not None])

    # --- evaluation -------------------------------------------------------------------------------------------

    @contextmanager
    def _ema_in_place(self) -> Iterator[None]:
        assert self._ema is not None, "EMA is off"
        self._set_weights(self._full_average)
        try:
            yield
        finally:
            self._set_weights(lambda name: self._fragments.full_weight(self._parameters[name]))

    def _full_average(self, name: str) -> torch.Tensor:
        assert self._ema is not None
        return self._fragments.assemble(name, self._ema.average.get(name))

    def _set_weights(self, full: Callable[[str], torch.Tensor]) -> None:
        """Overwrite the trained weights of the forward; the fp32 weights that the optimizer steps on stay, except
        under stage 0 in fp32, where they are the same tensors and are kept aside."""
        if self.decisions.zero_stage == 0 and self.decisions.precision.params == "fp32":
            self._swap_whole(full)
            return
        for name, p in self._parameters.items():
            if not p.requires_grad:
                continue
            value = full(name)
            if self.decisions.zero_stage == 3:
                with self._deepspeed.zero.GatheredParameters([p], modifier_rank=0):
                    p.data.copy_(value)
            else:
                p.data.copy_(value)

    def _swap_whole(self, full: Callable[[str], torch.Tensor]) -> None:
        if self._aside:
            for name, kept in self._aside.items():
                self._parameters[name].data.copy_(kept)
            self._aside = {}
            return
        trained = {name: p for name, p in self._parameters.items() if p.requires_grad}
        self._aside = {name: p.detach().clone() for name, p in trained.items()}
        for name, p in trained.items():
            p.data.copy_(full(name))

    # --- state ------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """DeepSpeed's own checkpoint, and what its reader must know before it opens it."""
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)
        if self.world.main:
            extra = {
                "update": self.update,
                "world_size": self.world.world_size,
                "zero_stage": self.decisions.zero_stage,
                "optimizer": self.config.optim.name,
                "layout": self._layout(),
            }
            (folder / "engine.json").write_text(json.dumps(extra))

    def load(self, folder: Path) -> None:
        """Load at the saved world size as it is, at another one through DeepSpeed's universal format."""
        extra = json.loads((folder / "engine.json").read_text())
        _check_stage(extra, self.decisions)
        if extra["layout"] != self._layout():
            raise CheckpointError(
                f"the checkpoint holds DeepSpeed's state of {extra['layout']} and this run needs {self._layout()}; "
                "resume on the same kind of device with the same precision.params and deepspeed.bf16"
            )
        ours = self._hyperparameters()
        if extra["world_size"] == self.world.world_size or not self.decisions.zero_stage:
            self._load_tag(folder, TAG)
        else:
            self._load_converted(folder)
            self._set_step_count(extra["update"])
        self._restore_hyperparameters(ours)
        self.update = extra["update"]

    def _layout(self) -> str:
        """What decides how DeepSpeed arranges the state in its files, besides stage and world size."""
        optimizer = self._engine.basic_optimizer
        own = isinstance(optimizer, MasterWeights)
        what = optimizer.steps if own else f"{type(optimizer).__name__} over"
        return f"{what} {self.decisions.precision.params} weights"

    def _hyperparameters(self) -> list[dict[str, Any]]:
        """What a config may change at resume, and what DeepSpeed's loading overwrites with the checkpoint's."""
        return [
            {key: value for key, value in group.items() if key not in ("params", "step")}
            for group in self._engine.basic_optimizer.param_groups
        ]

    def _restore_hyperparameters(self, ours: list[dict[str, Any]]) -> None:
        for group, values in zip(self._engine.basic_optimizer.param_groups, ours, strict=True):
            group.update(values)
        if hasattr(self._engine.optimizer, "clip_grad"):
            self._engine.optimizer.clip_grad = self.config.optim.clip_grad or 0.0

    def _load_tag(self, folder: Path, tag: str) -> None:
        path, _ = self._engine.load_checkpoint(str(folder), tag=tag)
        if path is None:
            raise CheckpointError(f"DeepSpeed could not load {folder / tag}; resume from another checkpoint")

    def _load_converted(self, folder: Path) -> None:
        """Convert in a scratch folder that all ranks of this host read and that is gone afterwards."""
        scratch = self.world.on_main(lambda: tempfile.mkdtemp(prefix=".universal-", dir=folder.parent.parent))
        problem = None
        if self.world.main:
            problem = _convert(folder / TAG, Path(scratch) / TAG, self.decisions.zero_stage)
        problem = self.world.broadcast(problem)
        try:
            if problem:
                raise CheckpointError(problem)
            self._load_tag(Path(scratch), TAG)
        finally:
            self.world.barrier()
            if self.world.main:
                shutil.rmtree(scratch, ignore_errors=True)

    def _set_step_count(self, updates: int) -> None:
        """The universal format of ZeRO-3 has no count of steps, which AdamW's bias correction needs."""
        for state in self._engine.basic_optimizer.state.values():
            if "exp_avg" in state:
                state["step"] = torch.tensor(float(updates), device=_step_device(self._engine.basic_optimizer, state))

    def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
        """Full fp32 weights on rank 0's CPU, by timm's names."""
        full = {}
        for name, p in self._parameters.items():
            averaged = ema and self._ema is not None and p.requires_grad
            value = self._full_average(name) if averaged else self._fragments.full_weight(p)
            if self.world.main:
                full[name] = value.detach().float().cpu().clone()
        if self.world.main:
            full.update({name: b.detach().cpu().clone() for name, b in self._plain.named_buffers()})
        return full

    def load_ema(self, full: dict[str, torch.Tensor]) -> None:
        """Take this rank's part of a full average, given on every rank."""
        assert self._ema is not None, "EMA is off"
        for name, average in self._ema.average.items():
            part = self._fragments.part(name, full[name].to(average.device))
            assert part is not None
            average.copy_(part.view_as(average))

    def gathered_optimizer_state(self) -> OptimizerState:
        """Full optimizer state on rank 0's CPU, by timm's names."""
        gathered: OptimizerState = {}
        for name, p in self._parameters.items():
            if p.requires_grad:
                state = self._fragments.full_state(p)
                if self.world.main:
                    gathered[name] = {key: value.detach().cpu().clone() for key, value in state.items()}
        return gathered

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self._engine.destroy()


def import_deepspeed(device_type: str):  # type: ignore[no-untyped-def]
    """deepspeed, told which accelerator to use and to keep its log for warnings; it reads both at import."""
    if device_type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if architectures:  # "9.0a" makes its op builder fail
        os.environ["TORCH_CUDA_ARCH_LIST"] = re.sub(r"(?<=\d)[af](?=$|[;, +])", "", architectures)
    # Its ops are built by the first `ninja` on the path. Another ninja than last time builds them all anew (minutes on
    # 2 cores), and without an activated environment there may be none: always take the one that came with deepspeed.
    beside = str(Path(sys.executable).parent)
    paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if paths[0] != beside:
        os.environ["PATH"] = os.pathsep.join([beside, *paths])
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if device_type == "cpu":
        # Compiled at first use under a lock that a killed process leaves behind, and only for inference.
        builder = deepspeed.accelerator.get_accelerator().create_op_builder("ShareMemCommBuilder")
        if builder is not None:
            deepspeed.ops.__compatible_ops__[builder.NAME] = False
    return deepspeed


def _step_device(optimizer: torch.optim.Optimizer, state: dict[str, torch.Tensor]) -> torch.device:
    """Where torch's AdamW keeps `step`: beside the states if fused, else on the CPU."""
    fused = any(group.get("fused") for group in optimizer.param_groups)
    return state["exp_avg"].device if fused else torch.device("cpu")


def _saved_world_size(folder: Path) -> int:
    return int(json.loads((folder / "engine.json").read_text())["world_size"])


def _check_stage(extra: dict[str, object], decisions: Decisions) -> None:
    if extra["zero_stage"] != decisions.zero_stage:
        raise CheckpointError(
            f"the checkpoint was written with parallel.zero_stage={extra['zero_stage']} and cannot be resumed with "
            f"zero_stage={decisions.zero_stage}; use the same stage, or start a new run with model.pretrained"
        )
    pair = optimizer_pair(str(extra["optimizer"]), "deepspeed", decisions.zero_stage)
    if extra["world_size"] != decisions.world_size and not pair.resharding:
        raise CheckpointError(
            f"the checkpoint of {extra['world_size']} processes cannot be resumed with {decisions.world_size}: "
            f"{pair.why}, and the run uses optim.name={extra['optimizer']}"
        )


def _convert(source: Path, target: Path, zero_stage: int) -> str | None:
    """Run DeepSpeed's converter in a process of its own; returns a sentence if it failed."""
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(source), "--output_folder", str(target)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    if zero_stage < 3:
        command.append("--inject_missing_state")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"DeepSpeed's converter could not reshape {source} for another number of processes: {last}"
