"""A forward timed when asked: as a whole, or leaf by leaf where an engine's hooks wait for weights before each part."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from vitscale.config.decide import decide
from vitscale.engine.own_time import OwnTime, waits_in_forward
from vitscale.engine.update import UpdateRules

from engine_making import ALONE, SINGLE, batch_of, config_of, engine_of  # isort: skip

CPU = torch.device("cpu")


class Sleep(nn.Module):
    """A part of a model that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x


def timed(own: OwnTime, model: nn.Module, images: int = 4) -> None:
    with own.forward(images):
        model(torch.zeros(images, 2))


def test_only_what_was_asked_for_is_timed_and_read_once() -> None:
    own, model = OwnTime(CPU), Sleep(0.03)
    timed(own, model)
    assert own.take() is None
    own.ask()
    timed(own, model)
    timed(own, model, 9)  # the next is not
    found = own.take()
    assert found is not None
    assert found.images == 4
    assert 0.03 <= found.seconds < 0.3
    assert own.take() is None


def test_what_was_not_read_yet_is_not_overwritten() -> None:
    own = OwnTime(CPU)
    for images in (4, 9):
        own.ask()
        timed(own, Sleep(0.0), images)
    found = own.take()
    assert found is not None
    assert found.images == 4


def test_leaves_leave_out_what_hooks_wait_for() -> None:
    """As FSDP2 on a block and ZeRO-3 on every module: weights are waited for in a hook before the module runs."""
    model = nn.Sequential(nn.Sequential(Sleep(0.02), Sleep(0.02)), Sleep(0.02))
    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: time.sleep(0.05))
        module.register_forward_hook(lambda *_: time.sleep(0.05))
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    own = OwnTime(CPU, model)
    own.ask()
    start = time.monotonic()
    timed(own, model)
    whole = time.monotonic() - start
    found = own.take()
    assert found is not None
    assert 0.06 <= found.seconds < whole - 0.4
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == before


def test_where_it_is_not_possible_nothing_is_timed() -> None:
    own = OwnTime(CPU, possible=False)
    own.ask()
    timed(own, Sleep(0.0))
    assert own.take() is None


def test_which_forwards_wait() -> None:
    waiting = [
        (e, z) for e, z in (("ddp", 0), ("fsdp2", 0), *(("deepspeed", z) for z in range(4))) if waits_in_forward(e, z)
    ]
    assert waiting == [("fsdp2", 0), ("deepspeed", 3)]


def test_an_engine_times_the_first_micro_step_of_an_update() -> None:
    engine = engine_of(config_of(SINGLE))
    engine.own_time.ask()
    engine.train_batch(batch_of(0, accum=2))
    found = engine.own_time.take()
    assert found is not None
    assert found.images == 4


def test_a_replayed_update_and_compiled_parts_between_hooks_are_not_timed() -> None:
    def possible(engine: str, compiled: bool, graphed: bool) -> bool:
        world_size = 1 if engine == "single" else 2
        decisions = decide(config_of({"engine": engine}), world_size=world_size, device_type="cpu")
        object.__setattr__(decisions, "fast", decisions.fast._replace(compile=compiled, cuda_graph=graphed))
        rules: Any = UpdateRules.__new__(UpdateRules)
        rules.decisions, rules.world = decisions, ALONE
        return rules._own_time(nn.Linear(1, 1))._possible

    assert possible("ddp", True, False)
    assert possible("fsdp2", False, False)
    assert not possible("fsdp2", True, False)
    assert not possible("ddp", False, True)
