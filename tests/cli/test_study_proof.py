"""`study --prove`: which engines are proved, what is kept, and what a record may claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vitscale.verify.proof as proof_module
from vitscale.cli.study_proof import prove, proved
from vitscale.config.study import StudyConfig
from vitscale.launch.probe import NO_DEVICES
from vitscale.study.machine import Machine
from vitscale.study.study import Plan, plan_study
from vitscale.verify.proof import Figure, Proof


def plan(**axes: Any) -> Plan:
    base = {"data": {"source": "digits"}, "train": {"micro_batch_size": 16, "grad_accum_steps": 1}}
    study = StudyConfig.model_validate({"base": base, "measure": {"updates": 20}, "axes": axes})
    return plan_study(study, Machine("cpu", NO_DEVICES, 2))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """Every proof that was made; deepspeed's fail."""
    found: list[tuple[str, int, str]] = []

    def verify(config: Any, nproc: int, *, engines: list[str], device: str | None) -> Proof:
        found.append((engines[0], nproc, config.precision.compute))
        value = 1.0 if "deepspeed" in engines[0] else 0.0
        return Proof((Figure("job", "variant", "weights", value, 1e-9, 1e-5, ""),), (), 1.0)

    monkeypatch.setattr(proof_module, "verify_engines", verify)
    return found


def test_each_engine_is_proved_once_for_each_precision(tmp_path: Path, asked: list[tuple[str, int, str]]) -> None:
    lines: list[str] = []
    axes = {"engine": ["single", "ddp", "deepspeed:1"], "world_size": [1, 2, 99], "precision": ["fp32", "bf16"]}
    prove(plan(**axes), tmp_path, "cpu", lines.append)
    expected = [(engine, 2, compute) for compute in ("fp32", "bf16") for engine in ("ddp", "deepspeed:1")]
    assert sorted(asked) == sorted(expected)
    assert any("deepspeed:1: NOT equal" in line for line in lines)
    prove(plan(**axes), tmp_path, "cpu", lines.append)
    assert len(asked) == 4  # kept
    says = proved(tmp_path)
    answers = {case.name: says(case) for case in plan(**axes).cases}
    assert answers["engine=ddp world_size=2 precision=bf16"] is True
    assert answers["engine=deepspeed:1 world_size=1 precision=fp32"] is False
    assert answers["engine=single world_size=1 precision=fp32"] is True


def test_what_was_not_looked_at_is_not_claimed(tmp_path: Path, asked: list[tuple[str, int, str]]) -> None:
    case = plan(engine=["ddp"], world_size=[2]).cases[0]
    assert proved(tmp_path)(case) is None
    prove(plan(engine=["ddp"], world_size=[2]), tmp_path, "cpu", lambda _: None)
    assert proved(tmp_path)(case) is True
    others = plan(engine=["ddp", "fsdp2", "single"], precision=["bf16"], compile=[True]).cases
    assert {proved(tmp_path)(other) for other in others} == {None}
