"""models.drop_path: timm's formula, from given draws, through compile and activation checkpointing."""

from __future__ import annotations

import pytest
import torch
from timm.layers import DropPath, drop_path
from torch import nn
from torch._dynamo.testing import CompileCounter

from vitscale.config.run import ModelConfig
from vitscale.models.build import build_model
from vitscale.models.drop_path import KeyedDropPath, num_draws, replace_drop_path, set_draws


@pytest.fixture
def model() -> nn.Module:
    config = ModelConfig(img_size=8, patch_size=2, in_chans=1, embed_dim=32, depth=4, num_heads=2, drop_path=0.5)
    return build_model(config, 10, seed=0)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def draws_of(model: nn.Module, batch: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, num_draws(model), generator=torch.Generator().manual_seed(seed))


def test_every_droppable_branch_needs_a_draw_and_none_is_timms(model: nn.Module) -> None:
    assert num_draws(model) == 2 * 3  # the first block's rate is 0
    assert not any(isinstance(module, DropPath) for module in model.modules())
    assert num_draws(build_model(ModelConfig(img_size=32), 10, seed=0)) == 0


def test_formula_is_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Sequential(DropPath(0.3))
    replace_drop_path(layer)
    x = torch.randn(5, 3, 2)
    draws = torch.tensor([0.0, 0.69, 0.71, 0.99, 0.5])
    set_draws(layer, draws.unsqueeze(1))
    kept = (draws < 0.7).float().view(5, 1, 1)
    monkeypatch.setattr(torch.Tensor, "bernoulli_", lambda self, p: self.copy_(kept))
    torch.testing.assert_close(layer(x), drop_path(x, 0.3, training=True), rtol=0, atol=0)
    torch.testing.assert_close(layer.eval()(x), x, rtol=0, atol=0)


def test_result_of_a_sample_does_not_depend_on_the_split(model: nn.Module, images: torch.Tensor) -> None:
    draws = draws_of(model)
    set_draws(model, draws)
    whole = model(images)
    for part in (slice(0, 1), slice(1, 6)):
        set_draws(model, draws[part])
        torch.testing.assert_close(model(images[part]), whole[part], rtol=1e-6, atol=1e-6)
    set_draws(model, draws_of(model, seed=1))
    assert not torch.allclose(model(images), whole), "other draws must drop other branches"


def test_training_without_draws_fails_loudly(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="set_draws"):
        model(images)
    set_draws(model, draws_of(model))
    set_draws(model, None)
    with pytest.raises(AssertionError, match="set_draws"):
        model(images)
    with pytest.raises(AssertionError, match="draws"):
        set_draws(model, torch.rand(6, 2))
    model.eval()(images)


def test_compile_sees_new_draws_without_recompiling(model: nn.Module, images: torch.Tensor) -> None:
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for seed in range(3):
        set_draws(compiled, draws_of(model, seed=seed))
        torch.testing.assert_close(compiled(images), model(images))
    assert counter.frame_count == 1


def gradients(model: nn.Module, images: torch.Tensor, draws: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    set_draws(model, draws)
    model(images).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_recomputation_sees_the_same_draws(model: nn.Module, images: torch.Tensor) -> None:
    draws = draws_of(model)
    plain = gradients(model, images, draws)
    model.set_grad_checkpointing(True)
    for first, second in zip(plain, gradients(model, images, draws), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_masks_stay_out_of_the_state_dict(model: nn.Module) -> None:
    before = set(model.state_dict())
    set_draws(model, draws_of(model))
    assert set(model.state_dict()) == before
    assert not list(KeyedDropPath(0.1).buffers())
