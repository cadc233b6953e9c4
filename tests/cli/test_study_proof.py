"""`study --prove`: which engines are proved, what is kept, and what a record may claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vitscale.verify.proof as proof_module
from vitscale.cli.study_proof import prove, proved
from vitscale.config.study import StudyConfig
from vitscale.launch.probe import NO_DEVICES, DeviceFacts
from vitscale.study.machine import Machine
from vitscale.study.study import Plan, plan_study
from vitscale.verify.proof import Figure, Proof

CPU = Machine("cpu", NO_DEVICES, 8)
GPU = Machine("cuda", DeviceFacts(2, ("GPU",) * 2, (10**11,) * 2, bf16=True, mps=False, rocm=False, torch_cuda="13"), 8)


def plan(machine: Machine = CPU, **axes: Any) -> Plan:
    model = {"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "in_chans": 1, "depth": 2}
    base = {"model": model, "data": {"source": "digits"}, "train": {"micro_batch_size": 16, "grad_accum_steps": 1}}
    study = StudyConfig.model_validate({"base": base, "measure": {"updates": 20}, "axes": axes})
    return plan_study(study, machine)


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


def test_more_processes_are_proved_again_and_fewer_are_covered(
    tmp_path: Path, asked: list[tuple[str, int, str]]
) -> None:
    for sizes in ([2], [1, 2], [1, 2, 4], [2, 4]):
        prove(plan(engine=["ddp"], world_size=sizes), tmp_path, "cpu", lambda _: None)
    assert [nproc for _, nproc, _ in asked] == [2, 4]
    wide = plan(engine=["ddp"], world_size=[1, 4, 8]).cases
    assert [proved(tmp_path)(case) for case in wide] == [True, True, None]


@pytest.mark.parametrize(
    "axis",
    [
        {"performance.cuda_graph": [False, True]},
        {"compile": [False, True]},
        {"attention": ["default", "flash"]},
        {"img_size": [8, 16]},
        {"model.depth": [2, 4]},
    ],
)
def test_each_setting_is_proved_apart(
    tmp_path: Path, asked: list[tuple[str, int, str]], axis: dict[str, list[Any]]
) -> None:
    both = plan(GPU, engine=["ddp"], world_size=[2], **axis)
    first = plan(GPU, engine=["ddp"], world_size=[2], **{name: values[:1] for name, values in axis.items()})
    prove(first, tmp_path, None, lambda _: None)
    assert [proved(tmp_path)(case) for case in both.cases] == [True, None]
    prove(both, tmp_path, None, lambda _: None)
    assert len(asked) == 2
    assert [proved(tmp_path)(case) for case in both.cases] == [True, True]


def test_one_process_with_a_switch_is_no_reference(tmp_path: Path, asked: list[tuple[str, int, str]]) -> None:
    plain = {"compile": [False], "attention": ["default"]}
    graphed = plan(GPU, engine=["single"], **{"performance.cuda_graph": [False, True]}, **plain)
    prove(graphed, tmp_path, None, lambda _: None)
    assert [(engine, nproc) for engine, nproc, _ in asked] == [("single", 1)]
    assert [proved(tmp_path)(case) for case in graphed.cases] == [None, True]


def test_a_kept_proof_of_an_earlier_version_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "proof").mkdir()
    row = {"engine": "ddp", "precision": "fp32/fp32/fp32", "compile": False, "passed": True}
    (tmp_path / "proof" / "proof.json").write_text(json.dumps([row]))
    assert proved(tmp_path)(plan(engine=["ddp"], world_size=[2]).cases[0]) is None


def test_what_was_not_looked_at_is_not_claimed(tmp_path: Path, asked: list[tuple[str, int, str]]) -> None:
    case = plan(engine=["ddp"], world_size=[2]).cases[0]
    assert proved(tmp_path)(case) is None
    prove(plan(engine=["ddp"], world_size=[2]), tmp_path, "cpu", lambda _: None)
    assert proved(tmp_path)(case) is True
    others = plan(engine=["ddp", "fsdp2", "single"], precision=["bf16"], compile=[True]).cases
    assert {proved(tmp_path)(other) for other in others} == {None}
