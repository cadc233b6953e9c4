"""Updates with float8 layers on one device (products emulated): close to bf16, and what resumes, evaluates, exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import engine_making
import pytest
import timm
import torch
from engine_making import (
    BF16,
    SGD,
    SINGLE,
    Tensors,
    batch_of,
    config_of,
    distance,
    images_of,
    model_of,
    run_updates,
)
from safetensors.torch import load_file

from vitscale import run as run_module
from vitscale.config import decide as decide_module
from vitscale.config.load import build_config
from vitscale.engine.base import Engine
from vitscale.export import export
from vitscale.parallel import float8
from vitscale.trained import open_run

pytest.importorskip("torchao", reason="the extra float8 is not installed")

FLOAT8: dict[str, Any] = {"compute": "float8"}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this CPU, which decide would refuse."""
    monkeypatch.setattr(float8, "emulated", True)
    monkeypatch.setattr(decide_module, "_check_device", lambda *_: None)


def engine_of(precision: dict[str, Any], **sections: Any) -> Engine:
    return engine_making.engine_of(config_of(SINGLE, precision=precision, **sections))


def movement(start: Tensors, end: Tensors) -> torch.Tensor:
    return torch.cat([(end[name] - start[name]).flatten().double() for name in sorted(start)])


@pytest.mark.parametrize(
    ("optim", "bounds"),
    [
        (SGD, (0.04, 0.05)),
        ({"lr": 1e-3, "eps": 1e-6}, (0.004, 0.25)),
    ],  # AdamW makes steps of the noise of small gradients
    ids=["sgd", "adamw"],
)
def test_ten_updates_stay_close_to_bf16_and_learn_as_much(optim: dict[str, Any], bounds: tuple[float, float]) -> None:
    """Losses, relative, and how far the weights went: ||float8 - bf16|| / ||bf16|| over all of them."""
    found = {}
    for name, precision in (("bf16", BF16), ("float8", FLOAT8)):
        engine = engine_of(precision, optim=optim)
        start = engine.gathered_parameters()
        losses = list(run_updates(engine, updates=10))
        found[name] = (losses, movement(start, engine.gathered_parameters()))
    (plain, there), (low, here) = found["bf16"], found["float8"]
    loss = max(abs(a - b) / b for a, b in zip(low, plain, strict=True))
    moved = float((here - there).norm() / there.norm())
    assert 1e-5 < loss < bounds[0]
    assert 1e-3 < moved < bounds[1]
    assert low[-1] < 0.95 * low[0]


def test_the_engine_says_which_layers() -> None:
    assert engine_of(FLOAT8).notes == ("float8: 8 of the 8 linear layers in the blocks; everything else stays bf16",)
    assert engine_of(BF16).notes == ()


def test_masters_are_fp32_and_named_as_timm_names_them() -> None:
    engine = engine_of(FLOAT8)
    weights = engine.gathered_parameters()
    assert weights.keys() == model_of(config_of(SINGLE)).state_dict().keys()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_a_step_smaller_than_bf16_can_say_is_kept() -> None:
    engine = engine_of(FLOAT8, optim={"lr": 1e-5, "weight_decay": 0.0, "eps": 1e-8})
    before = engine.gathered_parameters()["blocks.0.mlp.fc1.weight"]
    list(run_updates(engine, updates=2))
    after = engine.gathered_parameters()["blocks.0.mlp.fc1.weight"]
    assert (after != before).float().mean() > 0.9
    assert (after.bfloat16() != before.bfloat16()).float().mean() < 0.5


def test_evaluation_is_what_a_bf16_model_of_these_weights_says() -> None:
    engine = engine_of(FLOAT8)
    list(run_updates(engine, updates=3))
    images = images_of(9)[0]
    with engine.evaluating():
        found = engine.eval_forward(images)
    plain = model_of(config_of(SINGLE))
    plain.load_state_dict(engine.gathered_parameters())
    with torch.no_grad():
        expected = plain.bfloat16().eval()(images.bfloat16()).float()
    assert torch.equal(found, expected)
    assert engine.module.training


def test_checkpointing_changes_nothing() -> None:
    plain = engine_of(FLOAT8, optim=SGD)
    other = engine_of(FLOAT8, optim=SGD, performance={"checkpointing": True})
    assert list(run_updates(plain)) == list(run_updates(other))
    assert distance(plain.gathered_parameters(), other.gathered_parameters()) == 0


@pytest.mark.parametrize("precision", [FLOAT8, BF16])
def test_a_saved_engine_goes_on_bit_for_bit_and_bf16_can_take_over(tmp_path: Path, precision: dict[str, Any]) -> None:
    engine = engine_of(FLOAT8)
    list(run_updates(engine))
    engine.save(tmp_path)
    saved = engine.gathered_parameters()
    went_on = list(run_updates(engine))
    other = engine_of(precision)
    other.load(tmp_path)
    assert distance(other.gathered_parameters(), saved) == 0
    if precision == FLOAT8:
        assert list(run_updates(other)) == went_on
    else:
        assert list(run_updates(other)) == pytest.approx(went_on, rel=0.02)


def test_a_padded_micro_step_of_weight_0_adds_nothing() -> None:
    engine = engine_of(FLOAT8, optim={**SGD, "weight_decay": 0.0})
    before = engine.gathered_parameters()
    engine.train_batch(batch_of(0, loss_weight=0.0))
    assert distance(engine.gathered_parameters(), before) == 0


# --- a whole run --------------------------------------------------------------------------------------------------


def run_config(updates: int) -> Any:
    return build_config(
        {
            "model": {
                "name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10,
                "embed_dim": 32, "depth": 2, "num_heads": 2, "global_pool": "avg",
            },
            "data": {"train_limit": 100, "val_limit": 40},  # 100 = 3 x 32 + 4: a short update ends each epoch
            "optim": {"lr": 1e-3, "schedule": "constant", "clip_grad": 1.0, "ema_decay": 0.9},
            "precision": FLOAT8,
            "train": {"global_batch_size": 32, "grad_accum_steps": 2, "max_updates": updates},
            "checkpoint": {"every_updates": 3, "every_epochs": None},
            "log": {"tensorboard": False, "every_updates": 1},
        }
    )  # fmt: skip


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [loss for row in rows if row["kind"] == "train" for loss in row["losses"]]


def test_a_run_resumes_bit_for_bit_and_its_export_is_a_plain_timm_model(tmp_path: Path) -> None:
    for updates in (6, 10):
        run_module.train(run_config(updates), tmp_path / "twice", device="cpu", observers=None)
    result = run_module.train(run_config(10), tmp_path / "once", device="cpu", observers=None)
    assert losses(tmp_path / "twice") == losses(tmp_path / "once")
    assert len(losses(tmp_path / "once")) == 10
    started = json.loads((tmp_path / "once" / "metrics.jsonl").read_text().splitlines()[0])
    assert started["precision"] == "float8/bf16/bf16"
    assert any(note.startswith("float8: 8 of the 8") for note in started["notes"])
    out = tmp_path / "model.safetensors"
    export(open_run(tmp_path / "once", "last", ema=False), out)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=32, depth=2,
        num_heads=2, global_pool="avg",
    )  # fmt: skip
    weights = load_file(out)
    model.load_state_dict(weights)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert result.top1 is not None
