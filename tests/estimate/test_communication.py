"""Bytes per update in closed form, on numbers that can be checked by hand. tests/dist counts them in real updates."""

from __future__ import annotations

from typing import Any

import pytest

from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.estimate.communication import (
    Volume,
    bus_bandwidth,
    communication_of,
    gradient_bytes,
    sent_per_update,
)


def config_of(world_size: int = 4, steps: int = 3, **sections: Any) -> tuple[RunConfig, Decisions]:
    train = {"max_updates": 1, "micro_batch_size": 2, "grad_accum_steps": steps}
    config = build_config({"train": train, **sections})
    return config, decide(config, world_size=world_size)


@pytest.mark.parametrize(
    ("parallel", "total"),
    [
        ({"engine": "ddp"}, 2 * 4000),
        ({"engine": "deepspeed", "zero_stage": 0}, 2 * 4000),
        ({"engine": "deepspeed", "zero_stage": 1}, 2 * 4000 + 4000),
        ({"engine": "deepspeed", "zero_stage": 2}, 3 * 2 * 4000 + 4000),
        ({"engine": "deepspeed", "zero_stage": 3}, 3 * (3600 + 4000) + 400),
        ({"engine": "fsdp2"}, 3 * (4000 + 3600 + 4000)),
    ],
)
def test_a_thousand_weights_on_four_ranks(parallel: dict[str, Any], total: int) -> None:
    _, decisions = config_of(parallel=parallel)
    assert sent_per_update(1000, 100, decisions).bytes_per_update == total * 3 // 4


def test_precision_counts() -> None:
    _, autocast = config_of(
        parallel={"engine": "ddp"}, precision={"compute": "bf16", "params": "fp32", "reduce": "bf16"}
    )
    assert sent_per_update(1000, 0, autocast).bytes_per_update == 2 * 2000 * 3 // 4
    _, bf16 = config_of(parallel={"engine": "fsdp2"}, precision={"compute": "bf16", "reduce": "fp32"})
    assert sent_per_update(1000, 0, bf16).bytes_per_update == 3 * (2 * 2000 + 4000) * 3 // 4


def test_one_process_sends_nothing() -> None:
    config, decisions = config_of(world_size=1)
    assert communication_of(config, decisions) == Volume(0, "one process sends nothing")


def test_vit_b() -> None:
    model = {"name": "vit_base_patch16_224", "num_classes": 1000}
    config, decisions = config_of(world_size=2, model=model, parallel={"engine": "ddp"})
    assert gradient_bytes(config, decisions) == 86_567_656 * 4
    assert communication_of(config, decisions) == Volume(86_567_656 * 4, "(2 G) x 1/2")


def test_stage_3_keeps_small_tensors_whole() -> None:
    model = {"name": "vit_base_patch16_224", "num_classes": 1000}
    zero = {"engine": "deepspeed", "zero_stage": 3}
    # A block has 4 D^2 + 2 D H = 7,077,888 in matrices; then patches, positions and head, all over 100,000 elements.
    large = 12 * 7_077_888 + 768 * 768 + 197 * 768 + 768 * 1000
    config, decisions = config_of(world_size=2, steps=1, model=model, parallel=zero)
    found = communication_of(config, decisions)
    assert found is not None
    assert found.bytes_per_update == 4 * (large + 86_567_656 + (86_567_656 - large)) // 2
    settings = {"stage3_param_persistence_threshold": 10**9}
    config, decisions = config_of(
        world_size=2, steps=3, model=model, parallel=zero, deepspeed={"zero_optimization": settings}
    )
    found = communication_of(config, decisions)
    assert found is not None
    assert found.bytes_per_update == 4 * (3 * 86_567_656 + 86_567_656) // 2


def test_stage_3_gathers_twice_what_is_needed_again_late() -> None:
    _, decisions = config_of(parallel={"engine": "deepspeed", "zero_stage": 3})
    # The last 300 of 900 large parameters before the turn are used again within 600.
    found = sent_per_update(1000, 100, decisions, reuse_distance=600)
    assert found.bytes_per_update == (3 * (3600 + 2400 + 4000) + 400) * 3 // 4


@pytest.mark.parametrize(
    "model",
    [{"name": "vit_base_patch16_224", "num_classes": 10, "freeze": ["backbone"]}, {"name": "aimv2_1b_patch14_224"}],
)
def test_unknown_is_none(model: dict[str, Any]) -> None:
    config, decisions = config_of(model=model, parallel={"engine": "ddp"}, data={"source": "synthetic"})
    assert communication_of(config, decisions) is None
    assert gradient_bytes(config, decisions) is None


def test_bus_bandwidth_of_a_ring() -> None:
    """Eight ranks, 1 GB in 10 ms: 100 GB/s by the algorithm, and 175 over each link."""
    assert bus_bandwidth(10**9, 0.01, 8) == pytest.approx(175e9)
