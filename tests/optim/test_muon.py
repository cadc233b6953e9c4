"""optim.muon: torch's own Muon, for many matrices at once, with a learning rate that may be a tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitscale.optim.muon import Muon, orthogonal

SHAPES = ((48, 16), (16, 16), (64, 16), (16, 64), (48, 16), (16, 16))


def matrices(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in SHAPES]


def give_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    for parameter, gradient in zip(parameters, matrices(seed), strict=True):
        parameter.grad = gradient.detach()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_torchs(weight_decay: float) -> None:
    ours, theirs, start = matrices(), matrices(), matrices()
    group = {"params": ours, "lr": 0.02, "weight_decay": weight_decay}
    mine = Muon([group], lr=0.02, momentum=0.9)
    torchs = torch.optim.Muon(theirs, lr=0.02, momentum=0.9, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    for seed in (1, 2, 3):
        give_gradients(ours, seed)
        give_gradients(theirs, seed)
        mine.step()
        torchs.step()
    for one, two, first in zip(ours, theirs, start, strict=True):
        assert (one - two).norm() < 1e-2 * (two - first).norm()  # bf16 products, summed in another order
        buffers = mine.state[one]["momentum_buffer"], torchs.state[two]["momentum_buffer"]
        torch.testing.assert_close(*buffers, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3, 8, 24), (3, 24, 8), (2, 16, 16)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    given = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(given).float())
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert torch.equal(orthogonal(given)[1:2], orthogonal(given[1:2]))  # whatever its neighbours are


def test_a_learning_rate_on_the_device_is_obeyed() -> None:
    as_number, as_tensor = matrices(), matrices()
    one = Muon([{"params": as_number, "lr": 0.02, "weight_decay": 0.1}], lr=0.02, momentum=0.9)
    two = Muon([{"params": as_tensor, "lr": torch.tensor(0.02), "weight_decay": 0.1}], lr=0.02, momentum=0.9)
    for rate, seed in ((0.02, 1), (0.005, 2)):
        one.param_groups[0]["lr"] = rate
        two.param_groups[0]["lr"].fill_(rate)
        for optimizer, parameters in ((one, as_number), (two, as_tensor)):
            give_gradients(parameters, seed)
            optimizer.step()
    for a, b in zip(as_number, as_tensor, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_nothing_waits_for_the_device() -> None:
    """On the meta device there is no value to wait for: reading one would raise."""
    parameters = [nn.Parameter(parameter.detach().to("meta")) for parameter in matrices()]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    rate = torch.empty((), device="meta")
    Muon([{"params": parameters, "lr": rate, "weight_decay": 0.1}], lr=0.02, momentum=0.9).step()


def test_weights_without_a_gradient_stay() -> None:
    parameters = matrices()
    give_gradients(parameters, 1)
    parameters[2].grad = None
    before = [parameter.detach().clone() for parameter in parameters]
    Muon([{"params": parameters}], lr=0.02, momentum=0.9).step()
    assert [torch.equal(a, b) for a, b in zip(parameters, before, strict=True)].index(True) == 2
