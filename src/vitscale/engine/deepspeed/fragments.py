"""Where DeepSpeed keeps the fp32 weights and optimizer state of a parameter, for each ZeRO stage.

In: a DeepSpeed engine and its parameters by name. Out: this rank's fp32 fragments (what EMA averages), full tensors
(what checkpoints and proofs compare), and this rank's part of a full tensor.
    stage 0 fp32    the parameter itself                stage 0 bf16/fp16   an fp32 copy, alone or in a flat group
    stage 1, 2      a slice of a flat partition         stage 3             this rank's padded partition
"""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, safe_get_local_fp32_param
from torch import nn

from vitscale.engine.deepspeed.masters import MasterWeights


class Fragments:
    """Access to fp32 state by timm's parameter names."""

    def __init__(self, engine: Any, parameters: dict[str, nn.Parameter], zero_stage: int) -> None:
        self._engine = engine
        self._parameters = parameters
        self._stage = zero_stage
        self._homes = self._whole_homes() if zero_stage == 0 else {}

    def _whole_homes(self) -> dict[int, tuple[torch.Tensor, int]]:
        """Stage 0: the tensor that the optimizer steps on and where in it a parameter begins."""
        optimizer = self._engine.optimizer
        if isinstance(optimizer, MasterWeights):
            return {id(p): (master, 0) for p, master in optimizer.masters}
        if hasattr(optimizer, "fp32_groups"):  # torch's AdamW and others below fp32: one copy per parameter
            pairs = zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
            return {id(p): (m, 0) for low, high in pairs for p, m in zip(low, high, strict=True)}
        homes: dict[int, tuple[torch.Tensor, int]] = {}
        if hasattr(optimizer, "fp32_groups_flat"):  # DeepSpeed's FusedAdam: one flat tensor per group
            for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True):
                start = 0
                for p in group:
                    homes[id(p)] = (flat, start)
                    start += p.numel()
        return homes

    def _whole(self, p: nn.Parameter, key: str | None = None) -> torch.Tensor:
        """Stage 0: a parameter's fp32 weight, or one of its states, in place."""
        home, start = self._homes.get(id(p), (p, 0))
        source = home if key is None else self._engine.basic_optimizer.state[home][key]
        return source.detach().view(-1).narrow(0, start, p.numel()).view_as(p)

    def local(self) -> dict[str, torch.Tensor]:
        """This rank's fp32 fragments of the trained parameters; whole tensors under stage 0."""
        found = {name: self._local(p) for name, p in self._parameters.items() if p.requires_grad}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _local(self, p: nn.Parameter) -> torch.Tensor | None:
        if self._stage == 0:
            return self._whole(p)
        if self._stage == 3:
            return safe_get_local_fp32_param(p)  # type: ignore[no-any-return]
        mapping = p._hp_mapping  # type: ignore[attr-defined]
        return None if mapping is None else mapping.get_hp_fragment()

    def full_weight(self, p: nn.Parameter) -> torch.Tensor:
        """The full fp32 weight on every rank. Collective."""
        if self._stage == 0:
            return self._whole(p).float()
        if p.requires_grad:
            return safe_get_full_fp32_param(p)  # type: ignore[no-any-return]
        if self._stage == 3:
            with deepspeed.zero.GatheredParameters([p]):
                return p.detach().float().clone()
        return p.detach().float()

    def full_state(self, p: nn.Parameter) -> dict[str, torch.Tensor]:
        """The full optimizer state of a trained parameter on every rank. Collective."""
        if self._stage == 0:
            home, _ = self._homes.get(id(p), (p, 0))  # its own keys: under Muon not all parameters have the same
            return {key: self._whole(p, key) for key in _elementwise(self._engine.basic_optimizer.state[home])}
        if self._stage == 3:
            return {key: safe_get_full_optimizer_state(p, key) for key in self._state_keys()}
        return {key: self._from_slices(p, self._local_state(p, key)) for key in self._state_keys()}

    def _local_state(self, p: nn.Parameter, key: str) -> torch.Tensor | None:
        """This rank's slice of one state under stages 1 and 2, from the flat partition that the optimizer steps on
        (DeepSpeed's own look-up misses states that did not exist when it was built, such as SGD's momentum)."""
        mapping = p._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return None
        optimizer = self._engine.basic_optimizer
        flat = optimizer.param_groups[mapping.param_group_index]["params"][0]
        address = mapping.hp_fragment_address
        return optimizer.state[flat][key].narrow(0, address.start, address.numel)  # type: ignore[no-any-return]

    def _state_keys(self) -> list[str]:
        """Names of the element-wise states; the same on every rank, which the collectives need."""
        states = self._engine.basic_optimizer.state.values()
        return sorted({key for state in states for key in _elementwise(state)})

    def assemble(self, name: str, local: torch.Tensor | None) -> torch.Tensor:
        """A full tensor from every rank's fragment, cut as `local()` cuts. Collective."""
        p = self._parameters[name]
        if self._stage == 0:
            assert local is not None
            return local
        if self._stage == 3:
            assert local is not None
            parts = local.new_empty(self._world_size() * local.numel())
            dist.all_gather_into_tensor(parts, local.contiguous())
            return parts[: p.ds_numel].view(p.ds_shape)  # type: ignore[attr-defined]
        return self._from_slices(p, local)

    def _from_slices(self, p: nn.Parameter, local: torch.Tensor | None) -> torch.Tensor:
        """A full tensor from the slices of stages 1 and 2. Collective."""
        whole = torch.zeros(p.numel(), dtype=torch.float32, device=p.device)
        if local is not None:
            self._slice(p, whole).copy_(local)
        dist.all_reduce(whole)
        return whole.view_as(p)

    def part(self, name: str, full: torch.Tensor) -> torch.Tensor | None:
        """This rank's fragment of a full tensor."""
        p = self._parameters[name]
        if self._stage == 0:
            return full
        if self._stage == 3:
            size = safe_get_local_fp32_param(p).numel()
            padded = torch.zeros(size * self._world_size(), dtype=full.dtype, device=full.device)
            padded[: full.numel()] = full.flatten()
            return padded[size * dist.get_rank() :][:size]
        return None if p._hp_mapping is None else self._slice(p, full.flatten())  # type: ignore[attr-defined]

    @staticmethod
    def _slice(p: nn.Parameter, flat: torch.Tensor) -> torch.Tensor:
        address = p._hp_mapping.lp_fragment_address  # type: ignore[attr-defined]
        return flat.narrow(0, address.start, address.numel)

    @staticmethod
    def _world_size() -> int:
        return dist.get_world_size()


def _elementwise(state: dict[str, Any]) -> list[str]:
    """The keys of states that have a value per element of the parameter, unlike `step`."""
    return sorted(key for key, value in state.items() if torch.is_tensor(value) and value.dim() > 0)
