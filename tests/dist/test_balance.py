"""Devices of unequal speed, on 2 processes: step times near the ideal for every engine, shares that follow a device that
slows down, a straggler's name, and runs that go on at other weights and world sizes.

The devices are sleeps in proportion to the images, long beside all that is computed: see balance_worker.py.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from engine_list import ENGINES

from vitscale.study.case import Job
from vitscale.study.runner import run_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
FAST = 0.05  # seconds per image of a fast device, forward and backward together
GLOBAL_BATCH = 30  # 20 and 10 images at 2:1, 24 and 6 at 4:1


def config(parallel: dict[str, Any], balance: Any, updates: int = 8, **changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "model": {
            "name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 10,
            "embed_dim": 16, "depth": 1, "num_heads": 2, "global_pool": "avg",
        },
        "data": {"train_limit": 200, "val_limit": 30},
        "optim": {"lr": 1e-3, "schedule": "constant", "clip_grad": 1.0},
        "parallel": {**parallel, "balance": balance},
        "train": {"global_batch_size": GLOBAL_BATCH, "max_updates": updates},
        "eval": {"every_epochs": None},
        "checkpoint": {"every_epochs": None, "keep_best": False},
        "log": {"every_updates": 2},
    }  # fmt: skip
    if parallel.get("zero_stage") == 3:
        tree["deepspeed"] = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **values}
    return tree


def group(folder: Path, nproc: int, **sessions: dict[str, Any]) -> dict[str, Any]:
    """Run sessions one after the other in one process group."""
    for name, payload in sessions.items():
        payload.setdefault("run", str(folder / name))
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    job = Job("group", "balance_worker", {"sessions": sessions}, nproc, timeout_s=800, env={"PYTHONPATH": path})
    outcome = run_job(job, folder / f"group{nproc}")
    assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
    assert outcome.result is not None
    return outcome.result


def of(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["kind"] == kind]


def step_s(found: dict[str, Any], after: int = 2) -> float:
    """The median time of an update after the first ones."""
    return statistics.median(row["step_time_s"] for row in of(found, "train") if row["update"] > after)


def losses(found: dict[str, Any]) -> list[float]:
    return [loss for row in of(found, "train") for loss in row["losses"]]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_unequal_ranks_come_within_a_tenth_of_the_ideal(engine: str, tmp_path: Path) -> None:
    """The ideal is global_batch_size / the sum of the ranks' images per second."""
    parallel = ENGINES[engine]
    sessions = {
        f"{balance}{ratio}": {
            "config": config(parallel, balance, updates, log={"every_updates": 1}),
            "speeds": [(0, [FAST, FAST * ratio])],
        }
        for ratio in (2, 4)
        for balance, updates in (("none", 6), ("auto", 9))
    }
    found = group(tmp_path, 2, **sessions)
    for ratio in (2, 4):
        even, auto = found[f"none{ratio}"], found[f"auto{ratio}"]
        ideal = GLOBAL_BATCH / (1 / FAST + 1 / (FAST * ratio))
        waiting = GLOBAL_BATCH / 2 * FAST * ratio
        shares = of(auto, "start")[0]["shares"]
        print(f"{engine} {ratio}:1  shares {shares}  ideal {ideal:.3f}  auto {step_s(auto):.3f}  none {step_s(even):.3f}")
        assert sum(shares) == GLOBAL_BATCH
        assert shares[0] == pytest.approx(GLOBAL_BATCH * ratio / (ratio + 1), abs=1)
        assert step_s(auto) < 1.1 * ideal
        assert step_s(even) > 0.95 * waiting
        assert losses(auto)[:6] == pytest.approx(losses(even), rel=1e-4)  # the same training
        assert any("the ranks take" in note for note in of(auto, "start")[0]["notes"])
        assert [row["rank"] for row in of(even, "straggler")] == [1]
        assert of(auto, "straggler") == of(auto, "balance") == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "zero3"])  # the forward as a whole, and leaf by leaf
def test_shares_follow_a_device_that_slows_down(engine: str, tmp_path: Path) -> None:
    """Equal for 8 updates, then rank 1 takes twice as long; beside it a run that only tells of it."""
    speeds = [(0, [FAST, FAST]), (8, [FAST, 2 * FAST])]
    sessions = {
        balance: {"config": config(ENGINES[engine], balance, updates=28), "speeds": speeds}
        for balance in ("auto", "none")
    }
    found = group(tmp_path, 2, **sessions)
    auto = found["auto"]
    assert of(auto, "start")[0]["shares"] == [15, 15]
    (change,) = of(auto, "balance")
    assert change["shares"] == pytest.approx([20, 10], abs=1)
    assert 8 < change["update"] <= 20
    quick, slow = change["shares"]
    together = max(quick, 2 * slow) * FAST
    took = step_s(auto, after=change["update"] + 2)
    print(f"{engine} shares {change['shares']} at update {change['update']}: {together:.3f} s, and took {took:.3f} s")
    assert took < 1.1 * together
    assert any("shares change from 15, 15 to" in row["text"] for row in of(auto, "note"))
    assert losses(auto) == pytest.approx(losses(found["none"]), rel=1e-4)  # no sample lost or doubled at the change

    (straggler,) = of(found["none"], "straggler")
    assert straggler["rank"] == 1
    assert 9 <= straggler["since"] <= 12
    assert straggler["cost_s"] == pytest.approx(15 * FAST, rel=0.15)
    assert straggler["sm_clock_mhz"] is None
    assert any(row["text"].startswith("rank 1 has kept the others waiting since") for row in of(found["none"], "note"))


def test_equal_devices_stay_equal_and_nobody_is_named(tmp_path: Path) -> None:
    found = group(tmp_path, 2, auto={"config": config(ENGINES["ddp"], "auto", 16), "speeds": [(0, [FAST, FAST])]})
    assert of(found["auto"], "start")[0]["shares"] == [15, 15]
    assert of(found["auto"], "balance") == of(found["auto"], "straggler") == []


def test_a_run_goes_on_at_other_weights_and_another_world_size(tmp_path: Path) -> None:
    """Order and losses are those of a run that never stopped; evaluation is shared by the weights, too."""
    parallel, still = ENGINES["ddp"], [(0, [0.0] * 3)]
    batch = {"global_batch_size": 24, "grad_accum_steps": 2}

    def session(balance: Any, updates: int, run: str) -> dict[str, Any]:
        tree = config(parallel, balance, updates, train={**batch, "max_updates": updates})
        return {"config": tree, "speeds": still, "run": str(tmp_path / run), "conclude": True}

    two = group(
        tmp_path,
        2,
        whole=session("none", 15, "whole"),
        first=session([2, 1], 5, "run"),
        straight=session([2, 1], 10, "straight"),
        half=session([2, 1], 5, "stopped"),
        on=session([2, 1], 10, "stopped"),
        second=session([1, 3], 10, "run"),
    )
    three = group(tmp_path, 3, third=session([3, 2, 1], 15, "run"))
    assert losses(two["half"]) + losses(two["on"]) == losses(two["straight"])  # the same weights: bit for bit
    assert of(two["second"], "start")[0]["update"] == 5
    assert of(three["third"], "start")[0]["update"] == 10
    assert of(three["third"], "start")[0]["shares"] == [6, 4, 2]
    parts = losses(two["first"]) + losses(two["second"]) + losses(three["third"])
    assert parts == pytest.approx(losses(two["whole"]), rel=1e-5)
    (whole,), (third,) = of(two["whole"], "eval"), of(three["third"], "eval")
    assert (third["num_samples"], third["loss"]) == (30, pytest.approx(whole["loss"], rel=1e-4))
    # 5 updates of 24 images each (but the short last one of an epoch), then 30 images of evaluation in steps of 12
    assert [images[-3:] for images in three["third"]["images"]] == [[6, 6, 3], [4, 4, 2], [2, 2, 1]]
