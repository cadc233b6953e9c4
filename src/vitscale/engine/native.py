"""The native engines: one device, DDP and FSDP2, with PyTorch's own optimizers.

In: a plain model on its device. Here live what DeepSpeed owns in its engine: accumulation, loss scale, clipping,
fp32 masters of bf16 weights, and the state for checkpoints, written with torch DCP under parameter names so that any
world size and any native engine can load it.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from vitscale.config.decide import Decisions
from vitscale.config.run import RunConfig
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import World
from vitscale.engine.base import LossFn, OptimizerState, StepOutput
from vitscale.engine.graph import DDP_WARMUP, WARMUP, GraphedUpdate
from vitscale.engine.update import UpdateRules
from vitscale.estimate.vit import check_resolution
from vitscale.launch.failure import is_disk_full
from vitscale.models.drop_path import num_draws
from vitscale.optim.build import build_optimizer
from vitscale.optim.ema import Ema
from vitscale.optim.groups import param_groups
from vitscale.parallel.apply import DTYPES, data_parallel, prepare
from vitscale.parallel.float8 import use_float8
from vitscale.phases import NULL, Phase, Recorder


class NativeEngine(UpdateRules):
    """engine single, ddp or fsdp2."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        config: RunConfig,
        decisions: Decisions,
        world: World,
        total_updates: int,
        recorder: Recorder = NULL,
    ) -> None:
        super().__init__(model, loss_fn, config, decisions, world, total_updates, recorder)
        model.to(world.device)
        if decisions.precision.compute == "float8":
            self.notes += (use_float8(model, world.device),)
        prepare(model, config.performance, decisions)
        self._masters, self._frozen = self._cast(model)
        mesh = None if decisions.engine == "single" else world.mesh()
        graphed = decisions.fast.cuda_graph
        side = torch.cuda.Stream(world.device) if graphed else None  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side) if side else nullcontext():  # DDP and FSDP2 belong to the stream of their making
            self.module = data_parallel(model, decisions, mesh)
        # Taken now: after an evaluation FSDP2 leaves unsharded parameters in the model, in the compute precision.
        self._all = dict(model.named_parameters())
        self._parameters = {name: p for name, p in self._all.items() if p.requires_grad}
        groups = param_groups(model, config.optim)
        for group in groups:
            group["params"] = [self._weight(name) for name in group["param_names"]]
        self._optimizer = build_optimizer(groups, config.optim, device_type=world.device.type, capturable=graphed)
        self._scaler = torch.amp.GradScaler(world.device.type, enabled=decisions.precision.compute == "fp16")
        decay = config.optim.ema_decay
        self._ema = Ema(decay, self._local_weights()) if decay else None
        if decisions.engine == "ddp" and (world.device.type == "cpu" or config.train.deterministic):
            self._settle_buckets()
        warmup = WARMUP if decisions.engine == "single" else DDP_WARMUP
        self._graph = None if side is None else GraphedUpdate(self._compute, side, warmup)

    def _cast(self, model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, torch.Tensor]]:
        """bf16 weights with fp32 masters, where FSDP2's own policy does not keep them; empty otherwise. Frozen weights
        keep their fp32 values too, on the host: a checkpoint must not round what was never trained."""
        params = self.decisions.precision.params
        if params == "fp32" or self.decisions.engine == "fsdp2":
            return {}, {}
        named = list(model.named_parameters())
        masters = {name: nn.Parameter(p.detach().clone()) for name, p in named if p.requires_grad}
        frozen = {name: p.detach().cpu().clone() for name, p in named if not p.requires_grad}
        model.to(DTYPES[params])
        return masters, frozen

    def _weight(self, name: str) -> nn.Parameter:
        """What the optimizer steps on: the fp32 master if there is one."""
        return self._masters[name] if name in self._masters else self._parameters[name]

    def _exact(self, name: str) -> torch.Tensor:
        """Any parameter, trained or frozen, as checkpoints hold it."""
        if name in self._parameters:
            return self._weight(name).detach()
        return self._frozen.get(name, self._all[name].detach())

    def _weights(self) -> dict[str, nn.Parameter]:
        return {name: self._weight(name) for name in self._parameters}

    def _local_weights(self) -> dict[str, torch.Tensor]:
        return {name: _local(weight) for name, weight in self._weights().items()}

    def _settle_buckets(self) -> None:
        """DDP regroups its buckets after the first backward, which changes the order of sums; let it do so before
        the first update, so that a resumed run adds in the same order as one that never stopped."""
        size, _ = check_resolution(self.config.model)
        device = self.world.device
        micro = MicroBatch(
            images=torch.zeros(1, self.config.model.in_chans, size, size, device=device),
            targets=torch.zeros(1, dtype=torch.long, device=device),
            weights=torch.zeros(1, device=device),
            draws=torch.zeros(1, num_draws(self._plain), device=device),
        )
        self.module.train()
        self.weighted_loss(micro, 1.0).backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)

    # --- one update -------------------------------------------------------------------------------------------

    def train_batch(self, batch: UpdateBatch) -> StepOutput:
        """Run all micro-steps and one optimizer step."""
        with self._phase("forward"):
            self.begin_update()
        with self._phase("optimizer"):
            self.set_learning_rate(self._optimizer.param_groups)
        # DDP and FSDP2 average gradients over ranks; the update wants the mean over all its real samples.
        scale = self.world.world_size / batch.num_samples
        if self._graph is None:
            loss, norm = self._compute(batch.micro_batches, scale)
        else:
            with self._phase("step"):
                loss, norm = self._graph(batch.micro_batches, scale)
            self.recorder.inside(self._graph.parts)
        applied = self._update_scale()
        if applied:
            if self._ema:
                with self._phase("optimizer"):
                    self._ema.follow(self._local_weights(), self.update)
            self.update += 1
        return StepOutput(loss, norm, applied)

    def _phase(self, name: Phase) -> AbstractContextManager[object]:
        """An update that is one launch has one phase."""
        return self.recorder.phase(name if self._graph is None else "step")

    def _compute(
        self, micro_batches: tuple[MicroBatch, ...], scale: float | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Forward, backward and optimizer step, all on the device: (this rank's share of the loss, gradient norm)."""
        recorder = self.recorder if self._graph is None else self._graph.marks
        loss = torch.zeros((), device=self.world.device)
        last = len(micro_batches) - 1
        for index, micro in enumerate(micro_batches):
            with self._reducing(index == last):
                with recorder.phase("forward"):
                    share = self.weighted_loss(micro, scale)
                with recorder.phase("backward"):
                    self._scaler.scale(share).backward()  # type: ignore[no-untyped-call]
            loss = loss + share.detach() / self.world.world_size  # out of place: fp64 in the proof of equality
        with recorder.phase("optimizer"):
            norm = self._step()
        return loss, norm

    def _reducing(self, last: bool) -> AbstractContextManager[object]:
        """DDP reduces once per update; FSDP2 at every micro-step, since it keeps only shards of the gradients."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def _step(self) -> torch.Tensor | None:
        self._gradients_to_masters()
        self._scaler.unscale_(self._optimizer)
        norm = self._clip()
        self._scaler.step(self._optimizer)
        self.module.zero_grad(set_to_none=True)
        self._masters_to_weights()
        return norm

    @torch.no_grad()
    def _gradients_to_masters(self) -> None:
        """In one launch for all tensors, not one for each: at small batches the host sets the pace."""
        low: list[torch.Tensor] = []
        high: list[torch.Tensor] = []
        for name, master in self._masters.items():
            grad = self._parameters[name].grad
            master.grad = None if grad is None else torch.empty_like(master)
            if grad is not None and master.grad is not None:
                low.append(grad)
                high.append(master.grad)
        if low:
            torch._foreach_copy_(high, low)

    @torch.no_grad()
    def _masters_to_weights(self) -> None:
        if self._masters:
            names = list(self._masters)
            torch._foreach_copy_([self._parameters[n] for n in names], [self._masters[n] for n in names])

    def _clip(self) -> torch.Tensor | None:
        limit = self.config.optim.clip_grad
        if limit is None:
            return None
        norm = nn.utils.clip_grad_norm_(self._weights().values(), limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _update_scale(self) -> bool:
        """Whether the step was applied; only fp16 can skip one, and only there the host waits for the device."""
        if not self._scaler.is_enabled():
            return True
        before = self._scaler.get_scale()
        self._scaler.update()
        return bool(self._scaler.get_scale() >= before)

    # --- evaluation -------------------------------------------------------------------------------------------

    @contextmanager
    def evaluating(self, *, ema: bool = False) -> Iterator[None]:
        """Eval mode without gradients, with the EMA weights in place if asked. Collective at both ends."""
        with super().evaluating(ema=ema):
            yield
        if self._graph is not None and isinstance(self.module, FSDPModule):
            # Its backward would drop what evaluation gathered; replays run no hooks, and the next evaluation would
            # take the old weights for gathered ones.
            self.module.reshard()

    @contextmanager
    def _ema_in_place(self) -> Iterator[None]:
        assert self._ema is not None, "EMA is off"
        targets = {name: _local(p) for name, p in self._parameters.items()}
        kept = {name: tensor.clone() for name, tensor in targets.items()}
        self._fill(targets, self._ema.average)
        try:
            yield
        finally:
            self._fill(targets, kept)

    @torch.no_grad()
    def _fill(self, targets: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
        for name, tensor in targets.items():
            tensor.copy_(values[name])
        if isinstance(self.module, FSDPModule):
            self.module.reshard()

    # --- state ------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights (fp32 masters), frozen weights and optimizer state with torch DCP."""
        with _alone(self.world), _ordinary_errors(folder):
            dcp_save(self._tensors(), storage_writer=FileSystemWriter(folder / "dcp"), no_dist=not self.world.grouped)
        if self.world.main:
            steps = [float(g["step"]) if "step" in g else None for g in self._optimizer.param_groups]
            extra = {"update": self.update, "scaler": self._scaler.state_dict(), "group_steps": steps}
            (folder / "engine.json").write_text(json.dumps(extra))

    def load(self, folder: Path) -> None:
        """Load what any native engine saved at any world size."""
        self._allocate_optimizer_state(folder / "dcp")
        reader = FileSystemReader(folder / "dcp")
        with _alone(self.world), _ordinary_errors(folder):
            dcp_load(self._tensors(), storage_reader=reader, no_dist=not self.world.grouped)
        extra = json.loads((folder / "engine.json").read_text())
        self.update = extra["update"]
        for group, step in zip(self._optimizer.param_groups, extra["group_steps"], strict=True):
            if step is not None:  # LAMB counts here, and not with each parameter
                group["step"] = torch.tensor(step)
        if extra["scaler"] and self._scaler.is_enabled():
            self._scaler.load_state_dict(extra["scaler"])
        self._masters_to_weights()
        for name, value in self._frozen.items():
            self._all[name].detach().copy_(value)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Everything that a checkpoint holds, under `weight/NAME` and `optim/NAME/KEY`; loading fills it in place."""
        tensors = {f"weight/{name}": self._exact(name) for name in self._all}
        for name, weight in self._weights().items():
            for key, value in self._optimizer.state.get(weight, {}).items():
                tensors[f"optim/{name}/{key}"] = value
        return tensors

    def _allocate_optimizer_state(self, folder: Path) -> None:
        """Give the optimizer the tensors that the checkpoint will fill: shapes of the weight, or scalars (`step`)."""
        weights = self._weights()
        for full_key, meta in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
            if not full_key.startswith("optim/") or not isinstance(meta, TensorStorageMetadata):
                continue
            _, name, key = full_key.split("/")
            weight = weights[name]
            if len(meta.size) == 0:
                on_device = any(g.get("fused") or g.get("capturable") for g in self._optimizer.param_groups)
                device = self.world.device if on_device else torch.device("cpu")
                value = torch.zeros((), dtype=meta.properties.dtype, device=device)
            else:
                value = torch.zeros_like(weight, dtype=meta.properties.dtype)
            self._optimizer.state[weight][key] = value

    def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
        """Full fp32 weights on rank 0's CPU, by timm's names."""
        full = {}
        for name in self._all:
            source = self._exact(name)
            if ema and self._ema and name in self._parameters:
                source = _like(self._ema.average[name], source)
            full[name] = self._to_main(source)
        full.update({name: self._to_main(buffer) for name, buffer in self._plain.named_buffers()})
        return full if self.world.main else {}

    def load_ema(self, full: dict[str, torch.Tensor]) -> None:
        """Take this rank's part of a full average, given on every rank."""
        assert self._ema is not None, "EMA is off"
        for name, weight in self._weights().items():
            self._ema.average[name].copy_(_part(full[name], weight))

    def gathered_optimizer_state(self) -> OptimizerState:
        """Full optimizer state on rank 0's CPU, by timm's names."""
        gathered: OptimizerState = {}
        for name, weight in self._weights().items():
            state = self._optimizer.state.get(weight, {})
            gathered[name] = {key: self._to_main(value) for key, value in state.items()}
        return gathered if self.world.main else {}

    def _to_main(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return whole.detach().cpu().clone() if self.world.main else torch.empty(0)

    def close(self) -> None:
        """Nothing outlives the object."""


@contextmanager
def _ordinary_errors(folder: Path) -> Iterator[None]:
    """DCP collects what went wrong on any rank in a BaseException, which would pass by everything that tells people."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        if is_disk_full(cause):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from cause
        raise RuntimeError(f"{folder}: {cause}") from cause


@contextmanager
def _alone(world: World) -> Iterator[None]:
    """One process without a group is what was asked for; torch warns of it at each save and load."""
    with warnings.catch_warnings():
        if not world.grouped:
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _like(local: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """A local shard as the DTensor that `model` is; itself where `model` is a plain tensor."""
    if not isinstance(model, DTensor):
        return local
    return DTensor.from_local(
        local, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def _part(full: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """This rank's part of a full tensor, cut as `model` is."""
    full = full.to(model.device)
    if not isinstance(model, DTensor):
        return full
    part = distribute_tensor(full, model.device_mesh, model.placements, src_data_rank=None)
    assert isinstance(part, DTensor)
    return part.to_local()
