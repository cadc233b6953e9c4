"""optim.schedule: closed-form values at the ends of warm-up and decay, and the scaling rule."""

from __future__ import annotations

import math

import pytest

from vitscale.config.run import OptimConfig
from vitscale.errors import ConfigError
from vitscale.optim.schedule import learning_rate, lr_factor, peak_lr


def test_warm_up_starts_above_zero_and_reaches_the_peak() -> None:
    config = OptimConfig(warmup_updates=4)
    factors = [lr_factor(config, update, 100) for update in range(5)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert lr_factor(OptimConfig(), 0, 100) == 1.0


@pytest.mark.parametrize(
    ("schedule", "middle", "end"), [("cosine", 0.5, 0.0), ("linear", 0.5, 0.0), ("constant", 1.0, 1.0)]
)
def test_decay(schedule: str, middle: float, end: float) -> None:
    config = OptimConfig(schedule=schedule, warmup_updates=20)
    assert lr_factor(config, 20, 120) == 1.0
    assert lr_factor(config, 70, 120) == pytest.approx(middle)
    assert lr_factor(config, 120, 120) == pytest.approx(end)
    assert lr_factor(config, 500, 120) == pytest.approx(end), "past the end it stays there"
    assert lr_factor(config, 119, 120) > 0


def test_cosine_is_a_cosine_down_to_min_lr() -> None:
    config = OptimConfig(lr=1e-2, min_lr=1e-3)
    assert lr_factor(config, 25, 100) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert learning_rate(config, 100, 100, 256) == pytest.approx(1e-3)


def test_warm_up_longer_than_the_run_is_still_a_ramp() -> None:
    config = OptimConfig(warmup_updates=10)
    assert [lr_factor(config, u, 3) for u in range(3)] == pytest.approx([1 / 11, 2 / 11, 3 / 11])


@pytest.mark.parametrize(("rule", "expected"), [("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)])
def test_scaling_rule(rule: str, expected: float) -> None:
    config = OptimConfig(lr=1e-3, lr_scaling=rule, base_global_batch=256)
    assert peak_lr(config, 1024) == pytest.approx(expected)
    assert learning_rate(config, 0, 10, 1024) == pytest.approx(expected)


def test_min_lr_above_lr_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim.min_lr=0.1 is above optim.lr=0.01"):
        peak_lr(OptimConfig(lr=0.01, min_lr=0.1), 256)
