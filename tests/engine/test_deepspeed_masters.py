"""fp32 masters of bf16 weights: the step, clipping, and what a checkpoint holds of them."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from vitscale.config.run import OptimConfig
from vitscale.engine.deepspeed.masters import MasterWeights
from vitscale.optim.build import build_optimizer
from vitscale.optim.groups import ParamGroup, param_groups

CONFIG = OptimConfig(name="adamw", lr=1e-2, eps=1e-6)


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def build(groups: list[ParamGroup]) -> torch.optim.Optimizer:
    return build_optimizer(groups, CONFIG, device_type="cpu")


def wrapped(clip_grad: float | None = None) -> tuple[nn.Module, MasterWeights]:
    model = model_of()
    optimizer = MasterWeights(param_groups(model, CONFIG), build, clip_grad)
    return model.to(torch.bfloat16), optimizer


def give_gradients(model: nn.Module, update: int) -> None:
    generator = torch.Generator().manual_seed(update)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(torch.bfloat16).to(p.dtype)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> None:
    for update in updates:
        give_gradients(model, update)
        optimizer.step()
        model.zero_grad()


def masters_of(optimizer: MasterWeights) -> list[torch.Tensor]:
    return [master.detach() for _, master in optimizer.masters]


def test_masters_take_the_steps_of_an_fp32_model_and_start_unrounded() -> None:
    plain = model_of()
    by_hand = build_optimizer(param_groups(plain, CONFIG), CONFIG, device_type="cpu")
    model, optimizer = wrapped()
    run(plain, by_hand, range(4))
    run(model, optimizer, range(4))
    known = {id(weight): master for weight, master in optimizer.masters}
    for p, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(known[id(p)], expected)
        assert torch.equal(p, expected.to(torch.bfloat16))
        assert known[id(p)].grad is None


def test_clipping_is_of_the_masters_gradients_and_the_norm_stays_on_the_device() -> None:
    model, optimizer = wrapped(clip_grad=0.1)
    give_gradients(model, 0)
    grads = [p.grad.float() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    expected = nn.utils.get_total_norm(grads)
    assert isinstance(optimizer._global_grad_norm, torch.Tensor)
    assert torch.allclose(optimizer._global_grad_norm, expected)
    state = next(iter(optimizer.state.values()))["exp_avg"]
    first = next(g for g in grads if g.shape == state.shape)
    assert torch.allclose(state, 0.1 * first * 0.1 / expected, rtol=1e-4)


def test_without_clipping_no_norm_is_computed() -> None:
    model, optimizer = wrapped()
    run(model, optimizer, range(1))
    assert optimizer._global_grad_norm is None


def test_a_checkpoint_goes_on_bit_for_bit() -> None:
    """Masters are not what the weights say, and torch casts loaded states to the parameter's type."""
    model, optimizer = wrapped()
    run(model, optimizer, range(3))
    saved = deepcopy(optimizer.state_dict())
    other_model, other = wrapped()
    run(other_model, other, range(50, 52))
    other.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other_model.parameters(), strict=True))
    run(model, optimizer, range(3, 6))
    run(other_model, other, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(masters_of(optimizer), masters_of(other), strict=True))
    assert any(not torch.equal(m, m.to(torch.bfloat16).float()) for m in masters_of(other))


def test_a_weight_without_a_gradient_stays() -> None:
    model, optimizer = wrapped()
    before = [master.clone() for master in masters_of(optimizer)]
    give_gradients(model, 0)
    next(model.parameters()).grad = None
    optimizer.step()
    known = dict(zip([id(weight) for weight, _ in optimizer.masters], range(len(before)), strict=True))
    place = known[id(next(model.parameters()))]
    moved = [not torch.equal(a, b) for a, b in zip(before, masters_of(optimizer), strict=True)]
    assert [index for index, m in enumerate(moved) if not m] == [place]


def test_the_learning_rate_of_its_groups_is_the_one_it_steps_with() -> None:
    model, optimizer = wrapped()
    before = [master.clone() for master in masters_of(optimizer)]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    run(model, optimizer, range(1))
    assert all(torch.equal(a, b) for a, b in zip(before, masters_of(optimizer), strict=True))


@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_any_optimizer_can_step_them(name: str) -> None:
    config = OptimConfig(name=name, lr=1e-2, eps=1e-6)
    model = model_of()
    optimizer = MasterWeights(
        param_groups(model, config), lambda groups: build_optimizer(groups, config, device_type="cpu"), None
    )
    model.to(torch.bfloat16)
    run(model, optimizer, range(2))
    assert optimizer.steps.endswith("over fp32 masters of")
    assert all(torch.equal(w, m.to(torch.bfloat16)) for w, m in optimizer.masters)
