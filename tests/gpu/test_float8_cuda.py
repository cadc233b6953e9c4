"""float8 layers on a GPU that has them: real products, every way to run an update, and the proof of equality.

What must hold there and cannot be seen on a CPU: the products are the tensor cores' own, widths are legal, compile and
a whole-step CUDA graph work over them.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import ModelConfig
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import World
from vitscale.engine.build import build_engine
from vitscale.hardware import FLOAT8_CAPABILITY
from vitscale.losses import build_loss
from vitscale.models.build import build_model
from vitscale.parallel import float8
from vitscale.parallel.float8 import use_float8

pytest.importorskip("torchao", reason="the extra float8 is not installed")
able = torch.cuda.is_available() and torch.cuda.get_device_capability() >= FLOAT8_CAPABILITY
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not able, reason="needs a CUDA GPU with float8")]

CUDA = torch.device("cuda", 0)
SHAPE: dict[str, Any] = {"img_size": 64, "patch_size": 8, "embed_dim": 384, "depth": 4, "num_heads": 6}
BATCH, CLASSES, UPDATES = 64, 10, 24  # the graph is captured after 3 updates, or 11
OUTPUT_BOUND, GRADIENT_BOUND = 0.045, 0.07  # as in tests/parallel/test_float8.py, where they are derived


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = found.detach().double() - expected.detach().double()
    return float(difference.norm() / expected.detach().double().norm())


def block(emulated: bool | None) -> nn.Module:
    """A block as wide as ViT-L's; None: without float8."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(name="vit_large_patch16_224", depth=1), CLASSES, 0).to(CUDA).bfloat16()
    if emulated is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(float8, "emulated", emulated)
            use_float8(model, CUDA)
    return model


@pytest.mark.parametrize("images", [16, 3])  # 3 x 197 tokens are no multiple of 16
def test_the_tensor_cores_compute_what_the_emulation_says(images: int) -> None:
    inputs = torch.randn(images, 197, 1024, device=CUDA, dtype=torch.bfloat16)
    gradient = torch.randn(images, 197, 4096, device=CUDA, dtype=torch.bfloat16)
    found = []
    for emulated in (None, True, False):
        layer, leaf = block(emulated).blocks[0].mlp.fc1, inputs.clone().requires_grad_()  # type: ignore[union-attr, index]
        outputs = layer(leaf)
        outputs.backward(gradient)
        found.append((outputs, leaf.grad, layer.weight.grad))
    plain, by_emulation, real = found
    to_bf16 = [error(a, b) for a, b in zip(real, plain, strict=True)]
    to_emulation = [error(a, b) for a, b in zip(real, by_emulation, strict=True)]
    print("to bf16:", to_bf16, "to the emulation:", to_emulation)
    assert 0.01 < to_bf16[0] < OUTPUT_BOUND
    assert all(0.01 < value < GRADIENT_BOUND for value in to_bf16[1:])
    assert max(to_emulation) < 0.01  # fast accumulation of the forward product included


def test_evaluation_is_bf16_to_the_last_bit() -> None:
    plain, model = block(None).eval(), block(False).eval()
    images = torch.randn(8, 3, 224, 224, device=CUDA, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))


def test_three_float8_products_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, product, calls = block(False), torch._scaled_mm, []

    def counted(*operands: Any, **options: Any) -> torch.Tensor:
        calls.append([operand.dtype for operand in operands])
        return product(*operands, **options)

    monkeypatch.setattr(torch, "_scaled_mm", counted)
    images = torch.randn(8, 3, 224, 224, device=CUDA, dtype=torch.bfloat16)
    model(images).float().square().mean().backward()
    forward, backward = torch.float8_e4m3fn, torch.float8_e5m2
    assert calls == [[forward, forward]] * 4 + [[backward, forward]] * 8


def losses_of(precision: str, **performance: bool) -> list[float]:
    config = build_config(
        {
            "model": {"name": "vit_small_patch16_224", "num_classes": CLASSES, **SHAPE},
            "optim": {"lr": 3e-4, "schedule": "constant", "clip_grad": 1.0},
            "precision": {"compute": precision},
            "parallel": {"engine": "single"},
            "performance": {"compile": False, "cuda_graph": False, **performance},
            "train": {"micro_batch_size": BATCH // 2, "grad_accum_steps": 2, "max_updates": UPDATES},
        }
    )
    decisions = decide(config, world_size=1, device_type="cuda")
    model, world = build_model(config.model, CLASSES, 0), World(0, 1, 0, CUDA)
    engine = build_engine(model, build_loss(config.train), config, decisions, world, UPDATES)
    losses = []
    for update in range(UPDATES):
        generator = torch.Generator().manual_seed(update)
        targets = torch.randint(CLASSES, (BATCH,), generator=generator)
        noise = torch.randn(BATCH, 3, 64, 64, generator=generator)
        images = (noise + 0.3 * targets.view(-1, 1, 1, 1)).to(CUDA)
        weights = torch.ones(BATCH // 2, device=CUDA)
        parts = zip(images.chunk(2), targets.to(CUDA).chunk(2), strict=True)
        micros = tuple(MicroBatch(i, t, weights) for i, t in parts)
        losses.append(engine.train_batch(UpdateBatch(micros, BATCH, update, 0)).loss.item())
    torch._dynamo.reset()
    return losses


@pytest.fixture(scope="module")
def eager() -> dict[str, list[float]]:
    return {precision: losses_of(precision) for precision in ("bf16", "float8")}


def test_updates_stay_close_to_bf16(eager: dict[str, list[float]]) -> None:
    print(eager)
    assert eager["float8"] == pytest.approx(eager["bf16"], rel=0.08)
    assert eager["float8"] != eager["bf16"]
    assert eager["float8"][-1] < 0.8 * eager["float8"][0]


@pytest.mark.parametrize(
    "ways",
    [{"checkpointing": True}, {"cuda_graph": True}, {"compile": True}, {"compile": True, "cuda_graph": True}],
    ids=lambda ways: "+".join(ways),
)
def test_every_way_makes_the_same_updates(eager: dict[str, list[float]], ways: dict[str, bool]) -> None:
    """The first loss is that of one forward; later ones are apart by rounding that training amplifies."""
    found = losses_of("float8", **ways)
    print(ways, found)
    assert found[0] == pytest.approx(eager["float8"][0], rel=5e-3)
    assert found[:5] == pytest.approx(eager["float8"][:5], rel=0.02)
    assert found == pytest.approx(eager["float8"], rel=0.08)


@pytest.mark.parametrize("compiled", [False, True])
def test_ddp_and_fsdp2_make_the_update_of_one_process(tmp_path: Path, compiled: bool) -> None:
    name = "sgd-accum1-compile" if compiled else "sgd-accum2"
    command = [sys.executable, "-m", "vitscale", "verify", "precision.compute=float8", "--nproc", "1"]
    command += [f"performance.compile={str(compiled).lower()}", "--engine", "ddp", "--engine", "fsdp2"]
    command += ["--variant", name, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    assert len(json.loads((tmp_path / "proof.json").read_text())["figures"]) == 2 * 3


def test_copies_of_a_model_are_independent() -> None:
    """A deep copy keeps its float8 layers and has weights of its own."""
    model = block(False)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.blocks[0].mlp.fc1.weight.zero_()  # type: ignore[union-attr, index]
    assert type(other.blocks[0].mlp.fc1) is type(model.blocks[0].mlp.fc1)  # type: ignore[union-attr, index]
    assert model.blocks[0].mlp.fc1.weight.any()  # type: ignore[union-attr, index]
