"""The parent's decisions: what is started again, how often, from where, and on which devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitscale.cli import preflight, train_group
from vitscale.cli.preflight import Plan, prepare
from vitscale.cli.train_group import on_what_is_left, train_in_group
from vitscale.errors import DeviceError, VitscaleError
from vitscale.launch.outcome import GroupOutcome
from vitscale.launch.probe import DeviceFacts

OK = GroupOutcome(0, None, None, "", "ok")
DEAD = GroupOutcome(3, 1, "rank 1 was killed by SIGKILL", "", "error", curable=True)
BAD = GroupOutcome(2, 0, "an image is damaged", "", "error")


def gpus(count: int) -> DeviceFacts:
    return DeviceFacts(count, ("GPU",) * count, (2**34,) * count, bf16=True, mps=False, rocm=False, torch_cuda="13.0")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(preflight, "device_facts", lambda: gpus(4))
    overrides = ["train.global_batch_size=none", "train.micro_batch_size=8", "train.grad_accum_steps=1"]
    return prepare("digits", overrides, 4, tmp_path / "run", None, fresh=False, ds_config=None, device="cuda")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Outcomes to come; what each attempt was asked is told in their place."""
    queue: list[Any] = []
    told: list[dict[str, Any]] = []

    def run(plan: Plan, folder: Path, *, fresh: bool, hang_s: float) -> GroupOutcome:
        told.append({"nproc": plan.decisions.world_size, "fresh": fresh, "folder": folder.name})
        outcome: GroupOutcome = queue.pop(0)
        return outcome

    monkeypatch.setattr(train_group, "_run", run)
    monkeypatch.setattr(train_group, "on_what_is_left", lambda plan: plan)
    monkeypatch.setattr(train_group, "PAUSE_S", 0.0)
    return [queue, told]


def go(plan: Plan, tmp_path: Path, restarts: int) -> int:
    return train_in_group(plan, tmp_path, fresh=True, restarts=restarts, hang_s=30)


def test_a_dead_rank_is_started_again(
    plan: Plan, runs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, told = runs
    queue += [DEAD, DEAD, OK]
    (plan.out / "checkpoints" / "update-00000020").mkdir(parents=True)
    (plan.out / "checkpoints" / "update-00000020" / "manifest.json").touch()
    assert go(plan, tmp_path, 2) == 0
    assert [attempt["fresh"] for attempt in told] == [True, False, False]  # --fresh would refuse its own folder
    assert len({attempt["folder"] for attempt in told}) == 3
    assert "restart 2 of 2 goes on from update 20" in capsys.readouterr().err


def test_it_ends_when_the_restarts_are_used_up(plan: Plan, runs: list[Any], tmp_path: Path) -> None:
    runs[0].extend([DEAD, DEAD, OK])
    with pytest.raises(VitscaleError, match="killed by SIGKILL") as caught:
        go(plan, tmp_path, 1)
    assert caught.value.exit_code == 3
    assert len(runs[1]) == 2


def test_what_a_new_start_cannot_cure_is_not_tried_again(plan: Plan, runs: list[Any], tmp_path: Path) -> None:
    runs[0].extend([BAD, OK])
    with pytest.raises(VitscaleError, match="damaged") as caught:
        go(plan, tmp_path, 5)
    assert caught.value.exit_code == 2
    assert len(runs[1]) == 1


def test_it_goes_on_with_the_gpus_that_are_left(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [gpus(4)]
    monkeypatch.setattr("vitscale.launch.probe.device_facts", lambda *, fresh: left[0] if fresh else None)
    assert on_what_is_left(plan) is plan
    left[0] = gpus(3)
    smaller = on_what_is_left(plan)
    assert smaller.decisions.world_size == 2  # three do not divide 32 images in micro-batches of 8
    assert smaller.decisions.batch._asdict() == {
        "micro_batch_size": 8, "grad_accum_steps": 2, "global_batch_size": 32,
    }  # fmt: skip
    assert smaller.config.train.global_batch_size == 32
    assert "3 of 4 GPUs are left; going on with 2, train.grad_accum_steps=2" in capsys.readouterr().err
    left[0] = gpus(0)
    with pytest.raises(DeviceError, match="0 of 4 GPUs are left"):
        on_what_is_left(plan)
