"""The proof of equality through the real command: it passes as it is, and fails for each planted fault.

The faults are sitecustomize modules that the ranks, and only groups of several, import at their start.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist
FAULTS = Path(__file__).parent / "faults"


def run_verify(out: Path, *arguments: str, fault: str | None = None) -> tuple[int, dict, str]:
    env = dict(os.environ)
    if fault:
        env["PYTHONPATH"] = os.pathsep.join([str(FAULTS / fault), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "vitscale", "verify", "--device", "cpu", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    path = out / "proof.json"
    return done.returncode, json.loads(path.read_text()) if path.is_file() else {}, done.stdout + done.stderr


def failed(proof: dict) -> set[tuple[str, str]]:
    return {(f["variant"], f["quantity"]) for f in proof["figures"] if f["failed"]}


@pytest.mark.timeout(900)
def test_all_engines_make_the_same_update(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--nproc", "2")
    assert code == 0, text
    assert {f["job"] for f in proof["figures"]} == {
        "ddp-x2", "fsdp2-x2", "deepspeed-zero0-x2", "deepspeed-zero1-x2", "deepspeed-zero2-x2", "deepspeed-zero3-x2",
    }  # fmt: skip
    assert not proof["missing"]
    variants = {f["variant"] for f in proof["figures"]}
    assert {"sgd-accum1", "sgd-accum2", "sgd-accum4", "sgd-accum1-tail1", "sgd-accum1-clip"} <= variants
    assert {"sgd-accum1-balance2-1", "sgd-accum2-mixing-balance3-1", "sgd-accum1-tail1-balance3-1"} <= variants


def test_a_wrong_linear_is_found(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--engine", "ddp", fault="wrong_linear")
    assert code == 1, text
    assert ("sgd-accum1", "gradients") in failed(proof)
    assert ("adamw-accum1-double", "gradients") in failed(proof)


def test_default_clipping_is_found(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--engine", "deepspeed:1", fault="default_clipping")
    assert code == 1, text
    assert ("sgd-accum1", "gradients") in failed(proof)


def test_wrong_weighting_of_a_short_window_is_found(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--engine", "ddp", fault="wrong_weighting")
    assert code == 1, text
    assert ("sgd-accum1", "losses") in failed(proof)
    assert ("sgd-accum1", "gradients") not in failed(proof)  # the first window is whole


def test_averaging_the_means_of_unequal_ranks_is_found(tmp_path: Path) -> None:
    variants = ["--variant", "sgd-accum1-balance2-1", "--variant", "sgd-accum1"]
    code, proof, text = run_verify(tmp_path, "--engine", "ddp", *variants, fault="mean_of_means")
    assert code == 1, text
    assert ("sgd-accum1-balance2-1", "gradients") in failed(proof)
    assert ("sgd-accum1", "gradients") not in failed(proof)  # equal ranks hide it


@pytest.mark.timeout(600)
def test_four_unequal_ranks_make_the_update_of_one_process(tmp_path: Path) -> None:
    variants = ["sgd-accum1-balance4-2-1-1", "sgd-accum1-tail1-balance4-2-1-1", "sgd-accum2-mixing-balance4-2-1-1"]
    arguments = [word for name in variants for word in ("--variant", name)]
    code, proof, text = run_verify(tmp_path, "--nproc", "4", "--engine", "fsdp2", *arguments)
    assert code == 0, text
    assert {f["variant"] for f in proof["figures"]} == set(variants)


def test_below_fp32_the_floor_is_the_bound(tmp_path: Path) -> None:
    code, proof, text = run_verify(tmp_path, "--engine", "fsdp2", "precision.compute=bf16", "precision.params=fp32")
    assert code == 0, text
    assert all(f["bound"] is None for f in proof["figures"])


def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    code, _, text = run_verify(tmp_path, "--engine", "horovod")
    assert code == 2
    assert "--engine horovod is unknown; choose from single, ddp" in text
