"""The native engine on one device: each rule of an update by hand, precision, state. Groups are in tests/dist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_making import (
    ALONE,
    AUTOCAST,
    BF16,
    FP16,
    FREEZING,
    LAMB,
    MUON,
    SGD,
    SINGLE,
    Tensors,
    batch_of,
    config_of,
    distance,
    engine_of,
    images_of,
    model_of,
    norm_of,
    reference,
    run_updates,
    true_gradient,
)
from torch.nn import functional as F

from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.engine.native import NativeEngine


def single(**sections: Any) -> NativeEngine:
    engine = engine_of(config_of(SINGLE, **sections))
    assert isinstance(engine, NativeEngine)
    return engine


def copy_of(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


# --- an update ----------------------------------------------------------------------------------------------------


def test_an_update_is_a_step_on_the_mean_loss() -> None:
    config = config_of(SINGLE, optim={"name": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0})
    engine = engine_of(config)
    before = engine.gathered_parameters()
    output = engine.train_batch(batch_of(0, accum=2))
    gradient = true_gradient(config)
    expected = {name: before[name] - 0.5 * gradient[name] for name in gradient}
    assert distance(engine.gathered_parameters(), expected) < 1e-6
    images, targets = images_of(0)
    assert output.loss.item() == pytest.approx(F.cross_entropy(model_of(config)(images), targets).item(), rel=1e-6)
    assert (output.applied, output.grad_norm, engine.update) == (True, None, 1)


def test_padding_does_not_count_and_class_weights_do() -> None:
    images, targets = images_of(0)
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0])
    engine = single()
    batch = UpdateBatch((MicroBatch(images, targets, weights),), 4, 0, 0)
    losses = F.cross_entropy(model_of(engine.config)(images), targets, reduction="none")
    assert engine.train_batch(batch).loss.item() == pytest.approx((losses * weights).sum().item() / 4, rel=1e-6)


def test_the_learning_rate_is_the_one_of_the_update() -> None:
    engine = single(optim={"warmup_updates": 4, "lr": 1e-2, "layer_decay": 0.5, "schedule": "cosine"})
    seen = []
    for update in range(6):
        seen.append(engine.learning_rate())
        engine.train_batch(batch_of(update))
        for group in engine._optimizer.param_groups:
            assert group["lr"] == pytest.approx(seen[-1] * group["lr_scale"])
    assert seen[:5] == pytest.approx([2e-3, 4e-3, 6e-3, 8e-3, 1e-2])
    assert seen[5] < 1e-2


@pytest.mark.parametrize("limit", [1e9, 1e-2])
def test_clipping(limit: float) -> None:
    config = config_of(SINGLE, optim={**SGD, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip_grad": limit})
    engine = engine_of(config)
    before = engine.gathered_parameters()
    output = engine.train_batch(batch_of(0, accum=2))
    assert output.grad_norm is not None
    true_norm = norm_of(true_gradient(config))
    assert output.grad_norm.item() == pytest.approx(true_norm, rel=1e-5)
    moved = {name: after - before[name] for name, after in engine.gathered_parameters().items()}
    assert norm_of(moved) == pytest.approx(min(true_norm, limit), rel=1e-4)


def test_checkpointing_changes_no_bit() -> None:
    plain = reference(optim=SGD)
    recomputed = reference(optim=SGD, performance={"checkpointing": True})
    assert recomputed[0] == plain[0]
    assert distance(recomputed[1], plain[1]) == 0.0


# --- dropout ------------------------------------------------------------------------------------------------------


def dropped_loss(seed: int = 0, at_update: int = 0, noise: int | None = None) -> float:
    engine = single(model={"dropout": 0.3}, train={"seed": seed})
    engine.update = at_update
    if noise is not None:
        torch.manual_seed(noise)
    return engine.train_batch(batch_of(0)).loss.item()


def test_dropout_is_a_function_of_seed_and_update() -> None:
    assert dropped_loss() == dropped_loss(noise=1) == dropped_loss(noise=2)
    assert dropped_loss(at_update=1) != dropped_loss()


def test_dropout_is_the_same_when_recomputed() -> None:
    sections: dict[str, Any] = {"model": {"dropout": 0.3}, "optim": SGD}
    plain = reference(**sections)
    recomputed = reference(**sections, performance={"checkpointing": True})
    assert distance(recomputed[1], plain[1]) == 0.0


# --- EMA ----------------------------------------------------------------------------------------------------------


def test_ema_by_hand_and_in_place_only_while_evaluating() -> None:
    engine = single(optim={"lr": 1e-2, "ema_decay": 0.15})
    average = engine.gathered_parameters()
    for update in range(4):
        engine.train_batch(batch_of(update))
        decay = min(0.15, (1 + update) / (10 + update))
        for name, weight in engine.gathered_parameters().items():
            average[name] = decay * average[name] + (1 - decay) * weight
    found = engine.gathered_parameters(ema=True)
    assert distance(found, average) < 1e-6
    before = copy_of(engine.gathered_parameters())
    plain = model_of(engine.config).eval()
    images = images_of(9)[0]
    with engine.evaluating(ema=True):
        averaged = engine.eval_forward(images)
    with engine.evaluating():
        current = engine.eval_forward(images)
    for logits, weights in ((averaged, found), (current, before)):
        plain.load_state_dict(weights)
        torch.testing.assert_close(logits, plain(images), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(averaged, current, rtol=1e-3)
    assert distance(engine.gathered_parameters(), before) == 0.0
    assert engine.module.training


def test_the_weights_come_back_when_an_evaluation_fails() -> None:
    engine = single(optim={"ema_decay": 0.5})
    list(run_updates(engine))
    before = copy_of(engine.gathered_parameters())

    def fail() -> None:
        with engine.evaluating(ema=True):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert distance(engine.gathered_parameters(), before) == 0.0
    assert engine.module.training


# --- precision ----------------------------------------------------------------------------------------------------


def test_bf16_weights_have_masters_that_move_by_less_than_bf16_can_say() -> None:
    engine = single(precision=BF16, optim={"lr": 1e-5, "weight_decay": 0.0, "ema_decay": 0.9})
    first = engine.gathered_parameters()
    list(run_updates(engine, updates=2))
    now = engine.gathered_parameters()
    assert {p.dtype for p in engine.module.parameters()} == {torch.bfloat16}
    assert {t.dtype for t in now.values()} == {torch.float32}
    weight, start = now["blocks.0.mlp.fc1.weight"], first["blocks.0.mlp.fc1.weight"]
    moved = (weight - start).abs()
    assert 0 < moved.max() <= 2.1e-5
    assert (moved > 0).float().mean() > 0.9
    assert (weight.bfloat16() == start.bfloat16()).float().mean() > 0.5
    for name, p in engine.module.named_parameters():
        assert torch.equal(p, now[name].bfloat16())
    average = engine.gathered_parameters(ema=True)["blocks.0.mlp.fc1.weight"]
    assert average.dtype == torch.float32
    assert 0 < (average - start).abs().max() < moved.max()


def test_frozen_weights_below_fp32_keep_their_fp32_values(tmp_path: Path) -> None:
    engine = single(precision=BF16, **FREEZING)
    start = model_of(config_of(SINGLE)).state_dict()
    list(run_updates(engine))
    for name, tensor in engine.gathered_parameters().items():
        assert tensor.dtype == torch.float32
        frozen = name.startswith(("patch_embed.", "pos_embed", "blocks.0."))
        assert torch.equal(tensor, start[name]) == frozen, name
    engine.save(tmp_path)
    other = single(precision=BF16, **FREEZING, train={"seed": 1})
    other.load(tmp_path)
    assert distance(other.gathered_parameters(), engine.gathered_parameters()) == 0.0
    for one, two in zip(other.module.parameters(), engine.module.parameters(), strict=True):
        assert torch.equal(one, two)


def test_autocast_keeps_fp32_weights_and_computes_in_bf16() -> None:
    engine = single(precision=AUTOCAST)
    dtypes = set()
    engine._plain.blocks[0].mlp.fc1.register_forward_hook(lambda _m, _i, output: dtypes.add(output.dtype))
    losses = list(run_updates(engine))
    assert dtypes == {torch.bfloat16}
    assert {p.dtype for p in engine.module.parameters()} == {torch.float32}
    exact, _ = reference()
    assert losses == pytest.approx(exact, rel=2e-2)
    assert losses != pytest.approx(exact, rel=1e-6)


def test_fp16_scales_the_loss_and_skips_a_step_that_overflows(tmp_path: Path) -> None:
    engine = single(precision=FP16, optim={**SGD, "clip_grad": 1.0, "ema_decay": 0.9})
    scale = engine._scaler.get_scale()
    assert scale > 1
    before, average = engine.gathered_parameters(), engine.gathered_parameters(ema=True)
    output = engine.train_batch(batch_of(0, loss_weight=1e30))
    assert (output.applied, engine.update) == (False, 0)
    assert engine._scaler.get_scale() == scale / 2
    assert distance(engine.gathered_parameters(), before) == 0.0
    assert distance(engine.gathered_parameters(ema=True), average) == 0.0
    output = engine.train_batch(batch_of(0))
    assert (output.applied, engine.update) == (True, 1)
    exact, weights = reference(updates=1, optim={**SGD, "clip_grad": 1.0})
    assert output.loss.item() == pytest.approx(exact[0], rel=1e-2)
    assert distance(engine.gathered_parameters(), weights) < 1e-2
    engine.save(tmp_path)
    other = single(precision=FP16, optim={**SGD, "clip_grad": 1.0, "ema_decay": 0.9})
    other.load(tmp_path)
    assert other._scaler.get_scale() == scale / 2


# --- state --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections",
    [{}, {"optim": SGD}, LAMB, MUON, FREEZING, {"precision": BF16}, {"precision": {"compute": "fp16"}}],
    ids=["adamw", "sgd", "lamb", "muon", "freezing", "bf16", "fp16"],
)
def test_saved_and_loaded_it_goes_on_bit_for_bit(sections: dict[str, Any], tmp_path: Path) -> None:
    engine = single(**sections)
    list(run_updates(engine))
    engine.save(tmp_path)
    state = engine.gathered_optimizer_state()
    losses = list(run_updates(engine))
    resumed = single(**sections)
    resumed.load(tmp_path)
    assert resumed.update == 3
    for name, entries in resumed.gathered_optimizer_state().items():
        assert entries.keys() == state[name].keys()
        assert all(torch.equal(entries[key], state[name][key]) for key in entries)
    assert list(run_updates(resumed)) == losses
    assert distance(resumed.gathered_parameters(), engine.gathered_parameters()) == 0.0


def test_freezing() -> None:
    engine = single(**FREEZING)
    before = engine.gathered_parameters()
    list(run_updates(engine))
    after = engine.gathered_parameters()
    frozen = {name for name in before if torch.equal(before[name], after[name])}
    assert frozen == {name for name in before if name.startswith(("patch_embed.", "pos_embed", "blocks.0."))}
    assert engine.gathered_optimizer_state().keys() == before.keys() - frozen


def test_the_world_of_one_process() -> None:
    assert ALONE.main
    assert not ALONE.grouped
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert ALONE.gather(3) == [3]
    assert ALONE.broadcast("x") == "x"
    assert ALONE.on_main(lambda: 5) == 5
