"""The proof of equality on a GPU, and that it finds gradients that vanish under torch.compile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
FAULTS = Path(__file__).parents[1] / "dist" / "faults"


def run_verify(out: Path, *arguments: str, fault: str | None = None) -> tuple[int, dict, str]:
    env = {**os.environ, "VITSCALE_FAULT_ENGINE": "deepspeed"}
    if fault:
        env["PYTHONPATH"] = os.pathsep.join([str(FAULTS / fault), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "vitscale", "verify", "--nproc", "1", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=500)
    path = out / "proof.json"
    return done.returncode, json.loads(path.read_text()) if path.is_file() else {}, done.stdout + done.stderr


def test_bf16_under_stage_0_makes_the_same_update(tmp_path: Path) -> None:
    """DeepSpeed's FusedAdam, and the step on zero gradients that its wrapper takes at the start."""
    arguments = ["precision.compute=bf16", "--engine", "deepspeed:0", "--engine", "deepspeed:1"]
    code, proof, text = run_verify(tmp_path, *arguments, "--variant", "adamw-accum1", "--variant", "sgd-accum1")
    print(text)
    assert code == 0, text
    assert len(proof["figures"]) == 10


def test_fp32_on_a_gpu(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--engine", "ddp", "--engine", "fsdp2", "--engine", "deepspeed:1")
    print(text)
    assert code == 0, text
    assert proof["figures"]


@pytest.mark.parametrize("compiled", [False, True])
def test_whole_step_graphs_of_fsdp2_make_the_same_update(tmp_path: Path, compiled: bool) -> None:
    """Gathering, reducing and resharding inside the graph."""
    keys = ["performance.cuda_graph=true", f"performance.compile={str(compiled).lower()}"]
    word = "-compile-cuda_graph" if compiled else "-cuda_graph"
    names = [f"{name}{word}" for name in ("adamw-accum1", "adamw-accum2-mixing", "adamw-accum2-clip")]
    code, proof, text = run_verify(
        tmp_path, *keys, "--engine", "fsdp2", *(part for name in names for part in ("--variant", name))
    )
    print(text)
    assert code == 0, text
    assert len(proof["figures"]) == 3 * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_whole_step_graphs_make_the_same_update(tmp_path: Path, compiled: bool) -> None:
    """Captured and replayed updates, with accumulation, mixing, drop path, clipping and a short last window."""
    keys = ["performance.cuda_graph=true", f"performance.compile={str(compiled).lower()}"]
    tail = ["sgd-accum1", "sgd-accum2-mixing", "adamw-accum2-clip"]
    names = [f"{name}-compile-cuda_graph" if compiled else f"{name}-cuda_graph" for name in tail]
    options = [part for name in names for part in ("--variant", name)]
    code, proof, text = run_verify(tmp_path, *keys, "--engine", "single", "--engine", "ddp", *options)
    print(text)
    assert code == 0, text
    assert len(proof["figures"]) == 2 * (3 + 3 + 2)


def test_memory_efficient_linear_with_compile_is_found(tmp_path: Path) -> None:
    # One block: DeepSpeed's hooks make a graph of every layer, and each takes seconds to compile.
    arguments = ["performance.compile=true", "model.depth=1", "--engine", "deepspeed:3"]
    arguments += ["--variant", "sgd-accum1-compile"]
    code, proof, text = run_verify(tmp_path / "safe", *arguments)
    print(text)
    assert code == 0, text
    code, proof, text = run_verify(tmp_path / "fault", *arguments, fault="memory_efficient_linear")
    print(text)
    assert code == 1, text
    assert any(f["failed"] and "compile" in f["variant"] for f in proof["figures"])
