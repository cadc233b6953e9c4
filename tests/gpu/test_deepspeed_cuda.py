"""The DeepSpeed engine on a GPU: an update does not wait for the device, goes on from a checkpoint, and is proved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_verify_cuda import run_verify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
TESTS = Path(__file__).parents[1]


def figures(folder: Path, stage: int, clip: float | None) -> dict[str, Any]:
    path = os.pathsep.join([str(TESTS / "gpu"), str(TESTS / "engine"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "deepspeed_cuda_worker", str(folder), str(stage), str(clip).lower()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize(("stage", "clip", "allowed"), [(0, None, 0), (0, 1.0, 0), (1, None, 0), (2, None, 0)])
def test_an_update_waits_for_nothing_and_goes_on_from_a_checkpoint(
    stage: int, clip: float | None, allowed: int, tmp_path: Path
) -> None:
    found = figures(tmp_path, stage, clip)
    assert len(found["waits"]) == allowed, found["waits"]
    assert found["loaded"] == pytest.approx(found["went_on"], rel=1e-3)
    assert found["updates"] == [7, 7]


def test_stage_3_waits_where_it_must(tmp_path: Path) -> None:
    """For its norm; and its reduction's stream at the end of backward, which torch does not report."""
    found = figures(tmp_path, 3, None)
    print(found["waits"])
    assert len(found["waits"]) <= 3
    assert found["loaded"] == pytest.approx(found["went_on"], rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_stage_makes_the_same_update(precision: str, tmp_path: Path) -> None:
    engines = [part for stage in range(4) for part in ("--engine", f"deepspeed:{stage}")]
    named = [part for name in ("sgd-accum2", "sgd-accum1-clip", "adamw-accum1") for part in ("--variant", name)]
    keys = [f"precision.compute={precision}", "performance.compile=false"]
    code, proof, text = run_verify(tmp_path, *keys, *engines, *named)
    print(text)
    assert code == 0, text
    assert proof["figures"]


def test_blocks_compiled_between_the_hooks_of_stage_3(tmp_path: Path) -> None:
    """Gradients vanished under DeepSpeed's own compile with its own linear; here neither is used."""
    arguments = ["performance.compile=true", "model.depth=2", "--engine", "deepspeed:3"]
    code, proof, text = run_verify(tmp_path, *arguments, "--variant", "sgd-accum1-compile", "--variant", "sgd-accum1")
    print(text)
    assert code == 0, text
    assert proof["figures"]
