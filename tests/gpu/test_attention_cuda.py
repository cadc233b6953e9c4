"""The choice of the attention kernel on a GPU, and that the update stays the same under each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_verify_cuda import run_verify

from vitscale.parallel.attention import Shape, choose, measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_the_fastest_kernel_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape, device = Shape(64, 12, 197, 64), torch.device("cuda", 0)
    times = measure(shape, device, torch.bfloat16)
    print(times)
    assert {"flash", "math"} <= set(times)
    choice = choose("auto", shape, device, torch.bfloat16)
    assert choice is not None
    print(choice.why)
    assert times[choice.kernel] < 1.2 * min(times.values())
    assert times[choice.kernel] < times["math"]


@pytest.mark.parametrize("kernel", ["auto", "cudnn"])
def test_bf16_updates_are_the_same(kernel: str, tmp_path: Path) -> None:
    arguments = ["precision.compute=bf16", f"performance.attention={kernel}", "--engine", "ddp"]
    code, proof, text = run_verify(tmp_path, *arguments, "--variant", "sgd-accum1", "--variant", "adamw-accum1")
    print(text)
    assert code == 0, text
    assert len(proof["figures"]) == 5
