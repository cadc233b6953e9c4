"""The DeepSpeed engine's parts that need no group: what it refuses to load, and how its ops are built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_making import config_of

from vitscale.config.decide import decide
from vitscale.engine.deepspeed.engine import _check_stage
from vitscale.errors import CheckpointError


def check(*, saved_stage: int, saved_size: int, optimizer: str, stage: int) -> None:
    config = config_of({"engine": "deepspeed", "zero_stage": stage})
    extra = {"zero_stage": saved_stage, "world_size": saved_size, "optimizer": optimizer}
    _check_stage(extra, decide(config, world_size=2))


def test_another_stage_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"written with parallel.zero_stage=1 and cannot be resumed with .*=3"):
        check(saved_stage=1, saved_size=2, optimizer="adamw", stage=3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_momentum_cannot_be_resharded_under_zero(stage: int) -> None:
    with pytest.raises(CheckpointError, match=r"of 4 processes cannot be resumed with 2: .*optim.name=sgd"):
        check(saved_stage=stage, saved_size=4, optimizer="sgd", stage=stage)
    check(saved_stage=stage, saved_size=2, optimizer="sgd", stage=stage)
    check(saved_stage=stage, saved_size=4, optimizer="adamw", stage=stage)


def test_momentum_can_be_resharded_where_every_rank_has_all_of_it() -> None:
    check(saved_stage=0, saved_size=4, optimizer="sgd", stage=0)


def test_its_ops_are_built_by_the_ninja_that_came_with_it() -> None:
    """Two different ninjas by turns would build the same ops anew each time."""
    code = (
        "import os, shutil; from vitscale.engine.deepspeed.engine import import_deepspeed; import_deepspeed('cpu'); "
        "print(shutil.which('ninja'))"
    )
    env = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=120
    )
    assert Path(done.stdout.split()[-1]).parent == Path(sys.executable).parent
