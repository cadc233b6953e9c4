"""float8 layers under DDP and FSDP2 on 2 gloo processes (products emulated), judged by engine single.

One process with two micro-steps casts the same halves of the batch as two ranks do, so scales and rounding are the
same and what is left is the rounding of bf16.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_making import SGD, SINGLE, Tensors, config_of, engine_of, model_of, run_updates
from safetensors.torch import load_file

from vitscale.config import decide as decide_module
from vitscale.parallel import float8
from vitscale.study.case import Job
from vitscale.study.runner import run_job

pytest.importorskip("torchao", reason="the extra float8 is not installed")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def single() -> Iterator[tuple[list[float], Tensors]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(float8, "emulated", True)
        patch.setattr(decide_module, "_check_device", lambda *_: None)
        engine = engine_of(config_of(SINGLE, precision={"compute": "float8"}, optim=SGD))
        yield list(run_updates(engine, accum=2)), engine.gathered_parameters()


def movement(end: Tensors) -> torch.Tensor:
    start = model_of(config_of(SINGLE)).state_dict()
    return torch.cat([(end[name] - start[name]).flatten().double() for name in sorted(start)])


def apart(one: Tensors, two: Tensors) -> float:
    return float((movement(one) - movement(two)).norm() / movement(two).norm())


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_two_ranks_make_the_update_of_one_process_and_resume(
    engine: str, single: tuple[list[float], Tensors], tmp_path: Path
) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parent / "engine"), os.environ.get("PYTHONPATH", "")])
    payload: dict[str, Any] = {"parallel": {"engine": engine}}
    outcome = run_job(Job(engine, "float8_worker", payload, 2, 300, {"PYTHONPATH": path}), tmp_path)
    assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
    figures = outcome.result
    assert figures is not None
    losses, weights = single
    assert figures["notes"] == ["float8: 8 of the 8 linear layers in the blocks; everything else stays bf16"]
    assert figures["float8"] == pytest.approx(losses, rel=2e-3)
    equal = apart(load_file(tmp_path / "float8.safetensors"), weights)
    other = apart(load_file(tmp_path / "bf16.safetensors"), weights)
    assert equal < 0.2 * other  # what float8 itself changes is larger than what the engine does
    assert figures["loaded"] == figures["went_on"]
    assert figures["eval"][0] == figures["eval"][1]
