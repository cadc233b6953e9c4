"""Build the optimizer from parameter groups: AdamW, SGD, timm's LAMB, or Muon (optim.muon) with AdamW for the rest.

In: groups (optim.groups) and OptimConfig. Out: one torch.optim.Optimizer whose param_groups and state_dict behave as
any other's. Clipping is the engine's, the learning rate of each update the schedule's. Which optimizer goes with which
engine is config.decide's table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.optim import Lamb

from vitscale.config.run import OptimConfig
from vitscale.errors import ConfigError
from vitscale.optim.groups import ParamGroup
from vitscale.optim.muon import Muon


def build_optimizer(
    groups: list[ParamGroup], config: OptimConfig, *, device_type: str, capturable: bool = False
) -> torch.optim.Optimizer:
    """Build the optimizer; group["lr"] starts at config.lr x lr_scale, engines overwrite it at each update.

    capturable: for a CUDA graph; the learning rate is then a tensor on the device.
    """
    groups = [{**group, "lr": _rate(config.lr * group["lr_scale"], device_type, capturable)} for group in groups]
    match config.name:
        case "adamw":
            return _adamw(groups, config, device_type, capturable)
        case "sgd":
            fused = True if capturable else None
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused)
        case "lamb":
            # max_grad_norm: timm's LAMB clips the global norm at 1 by default, and clipping is the engine's
            lamb: torch.optim.Optimizer = Lamb(
                groups, lr=config.lr, betas=config.betas, eps=config.eps, max_grad_norm=None
            )
            return lamb
        case "muon":
            return MuonAdamW(groups, config, device_type, capturable)


def takes_muon(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon updates this parameter: the matrices inside the blocks. Embeddings and head take AdamW."""
    return name.startswith("blocks.") and parameter.ndim == 2


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the blocks' matrices and AdamW for everything else, as one optimizer.

    Both halves work on this object's own groups and state, so lr changes, state_dict and load_state_dict act on one
    list of groups. Muon's step is scaled to the RMS of an AdamW step, so that one learning rate serves both halves.
    """

    def __init__(
        self, groups: list[ParamGroup], config: OptimConfig, device_type: str, capturable: bool = False
    ) -> None:
        matrices, rest = _select(groups, takes_muon, True), _select(groups, takes_muon, False)
        if not matrices:
            raise ConfigError(
                "optim.name=muon updates the matrices of the blocks, and model.freeze leaves none of them trainable; "
                "use adamw"
            )
        self._halves: list[tuple[bool, torch.optim.Optimizer]] = [
            (True, Muon(matrices, lr=config.lr, momentum=config.momentum))
        ]
        if rest:
            self._halves.append((False, _adamw(rest, config, device_type, capturable)))
        super().__init__([group for _, half in self._halves for group in half.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of both halves."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for muon, half in self._halves:
            # load_state_dict replaces groups and state by new objects, so the halves are tied to them anew
            half.param_groups = [group for group in self.param_groups if group["muon"] is muon]
            half.state = self.state
            half.step()
        return loss


def _adamw(
    groups: list[ParamGroup], config: OptimConfig, device_type: str, capturable: bool = False
) -> torch.optim.AdamW:
    fused = True if device_type == "cuda" else None
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused, capturable=capturable
    )


def _rate(value: float, device_type: str, capturable: bool) -> float | torch.Tensor:
    return torch.tensor(value, device=device_type) if capturable else value


def _select(groups: list[ParamGroup], rule: Callable[[str, torch.Tensor], bool], wanted: bool) -> list[ParamGroup]:
    """The part of each group whose parameters `rule` takes (or leaves), marked by the key "muon"."""
    selected = []
    for group in groups:
        pairs = zip(group["param_names"], group["params"], strict=True)
        kept: list[tuple[str, Any]] = [(name, p) for name, p in pairs if rule(name, p) is wanted]
        if kept:
            names, params = (list(column) for column in zip(*kept, strict=True))
            selected.append({**group, "params": params, "param_names": names, "muon": wanted})
    return selected
