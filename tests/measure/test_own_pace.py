"""The start measurement finds how slow a rank is, leaves the model as it was, and knows what fits."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.errors import DeviceError
from vitscale.losses import build_loss
from vitscale.measure import own_pace
from vitscale.measure.own_pace import images_that_fit, measure_own_pace
from vitscale.models.build import build_model

CPU = torch.device("cpu")
FIXED, PER_IMAGE = 0.02, 0.01


def config_of(engine: str = "ddp") -> Any:
    model = {
        "name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 5,
        "embed_dim": 16, "depth": 2, "num_heads": 2, "global_pool": "avg", "drop_path": 0.1,
    }  # fmt: skip
    return build_config(
        {"model": model, "parallel": {"engine": engine}, "train": {"micro_batch_size": 12, "epochs": 1}}
    )


class _Slow(torch.autograd.Function):
    """Sleeps in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.seconds = FIXED + PER_IMAGE * len(x)
        time.sleep(ctx.seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * ctx.seconds)
        return gradient


def slowed(model: nn.Module) -> nn.Module:
    """A device that is slow in a leaf of the model."""
    leaf: Any = model.patch_embed.proj  # type: ignore[union-attr]
    forward = leaf.forward
    leaf.forward = lambda x: _Slow.apply(forward(x))
    return model


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])  # the forward as a whole, and leaf by leaf
def test_the_pace_of_a_slow_rank(engine: str) -> None:
    config = config_of(engine)
    model = slowed(build_model(config.model, 5, 0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decisions = decide(config, world_size=2, device_type="cpu")
    pace = measure_own_pace(model, build_loss(config.train), config, decisions, CPU, 8)
    for images in (4, 24):  # also beyond what was measured
        slept = FIXED + PER_IMAGE * images
        assert slept * 0.9 < pace.forward.seconds(images) < slept * 1.5
        assert 3 * slept * 0.9 < pace.whole.seconds(images) < 3 * slept * 1.5
    assert pace.whole.most is None  # a CPU's memory is not counted
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_where_the_even_share_does_not_fit_smaller_ones_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of()
    decisions = decide(config, world_size=2, device_type="cpu")
    asked: list[int] = []

    def fits(limit: int) -> Any:
        def size(_bench: Any, images: int) -> own_pace._Size:
            asked.append(images)
            if images > limit:
                raise torch.OutOfMemoryError
            return own_pace._Size(images, 0.1 * images, 0.02 * images, 0)

        return size

    def measure() -> Any:
        return measure_own_pace(nn.Identity(), build_loss(config.train), config, decisions, CPU, 8)

    monkeypatch.setattr(own_pace._Bench, "size", fits(4))
    assert measure().whole.seconds(10) == pytest.approx(1.0)
    assert asked == [3, 12, 1, 6, 1, 3]
    monkeypatch.setattr(own_pace._Bench, "size", fits(0))
    with pytest.raises(DeviceError, match=r"the whole model and a few images are more than its memory; give weights"):
        measure()


def test_images_that_fit() -> None:
    assert images_that_fit(1000, (2, 120), (12, 620)) == 20  # 50 bytes an image
    assert images_that_fit(1070, (2, 120), (12, 620), unit=2) == 20
    assert images_that_fit(10, (2, 120), (12, 620), unit=2) == 2
    assert images_that_fit(1000, (2, 620), (12, 620)) is None
