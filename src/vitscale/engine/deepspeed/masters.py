"""An optimizer over fp32 masters of bf16 weights, for DeepSpeed's stage 0, which takes any torch optimizer.

In: parameter groups of the model's weights, in the precision that masters start from, before the model is cast.
DeepSpeed reduces the gradients of the bf16 weights and calls `step`; then the gradients go to the masters, are clipped
there, the wrapped optimizer steps, and the weights are brought up to date: a few launches for all weights, and nothing
that waits for the device. Its groups and state are those of the wrapped optimizer, so the learning rate, state_dict
and loading act on one object. Not here: the reduction, which is DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vitscale.optim.groups import ParamGroup

Build = Callable[[list[ParamGroup]], torch.optim.Optimizer]


class MasterWeights(torch.optim.Optimizer):
    """Steps fp32 masters; `masters` are the pairs (weight of the model, its master)."""

    def __init__(self, groups: list[ParamGroup], build: Build, clip_grad: float | None) -> None:
        self.masters: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._inner = build([{**group, "params": self._copies(group["params"])} for group in groups])
        super().__init__(self._inner.param_groups, {})
        self.clip_grad = clip_grad or 0.0
        self._global_grad_norm: torch.Tensor | None = None  # DeepSpeed looks for it under this name

    @property
    def steps(self) -> str:
        """What it steps, in words."""
        return f"{type(self._inner).__name__} over fp32 masters of"

    def _copies(self, weights: list[nn.Parameter]) -> list[nn.Parameter]:
        pairs = [(weight, nn.Parameter(weight.detach().float().clone())) for weight in weights]
        self.masters += pairs
        return [master for _, master in pairs]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of the masters and of the weights; the gradients of the weights are DeepSpeed's to clear."""
        low = [weight.grad for weight, _ in self.masters if weight.grad is not None]
        used = [master for weight, master in self.masters if weight.grad is not None]
        high = [torch.empty_like(master) for master in used]
        torch._foreach_copy_(high, low)
        for master, grad in zip(used, high, strict=True):
            master.grad = grad
        if self.clip_grad:
            self._global_grad_norm = nn.utils.clip_grad_norm_(used, self.clip_grad)
        # load_state_dict replaces groups and state by new objects, so the wrapped one is tied to them anew
        self._inner.param_groups, self._inner.state = self.param_groups, self.state
        self._inner.step()
        for master in used:
            master.grad = None
        self._to_weights()

    def _to_weights(self) -> None:
        weights, masters = zip(*self.masters, strict=True)
        torch._foreach_copy_([weight.detach() for weight in weights], [master.detach() for master in masters])

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, and the masters in the order of the groups."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self.masters]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load in place, masters included, and bring the weights up to date."""
        for (_, master), saved in zip(self.masters, state_dict["masters"], strict=True):
            master.detach().copy_(saved)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "masters"})
        self._to_weights()
