"""What `auto` becomes for each engine and device, and why."""

from __future__ import annotations

from typing import Any

import pytest

import vitscale.config.performance as performance_module
from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.performance import FastPaths, fallbacks
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton needs is there, whatever this machine has."""
    monkeypatch.setattr(performance_module, "find_spec", lambda _: object())
    monkeypatch.setenv("CC", "cc")


def built(engine: str = "auto", stage: int = 0, **sections: Any) -> RunConfig:
    train = {"micro_batch_size": 8, "max_updates": 1, **sections.pop("train", {})}
    return build_config({"train": train, "parallel": {"engine": engine, "zero_stage": stage}, **sections})


def decided(engine: str = "auto", stage: int = 0, device: str | None = "cuda", nproc: int = 1, **sections: Any) -> Any:
    return decide(built(engine, stage, **sections), world_size=nproc, device_type=device)


def why(decisions: Decisions, key: str) -> str:
    (found,) = (reason.why for reason in decisions.reasons if reason.key == f"performance.{key}")
    return found


@pytest.mark.parametrize(
    ("engine", "stage", "compile_", "graph"),
    [
        ("single", 0, True, True),
        ("ddp", 0, True, True),
        ("fsdp2", 0, True, False),
        ("deepspeed", 0, True, False),
        ("deepspeed", 2, True, False),
        ("deepspeed", 3, False, False),
    ],
)
def test_on_a_gpu_all_is_on_that_an_engine_can_have(engine: str, stage: int, compile_: bool, graph: bool) -> None:
    for device in ("cuda", None):
        assert decided(engine, stage, device).fast == FastPaths(compile_, graph, "auto")
    assert decided(engine, stage).static_shapes == (compile_ or graph)


@pytest.mark.parametrize("engine", ["single", "ddp", "fsdp2", "deepspeed"])
def test_on_a_cpu_nothing_is_on(engine: str) -> None:
    decisions = decided(engine, device="cpu")
    assert decisions.fast == FastPaths(False, False, "default")
    assert not decisions.static_shapes


def test_several_gpus_have_no_graph_unless_it_is_asked_for() -> None:
    assert not decided("ddp", nproc=2).fast.cuda_graph
    assert "several GPUs" in why(decided("ddp", nproc=2), "cuda_graph")
    assert decided("ddp", nproc=2, performance={"cuda_graph": True}).fast.cuda_graph


def test_float8_has_a_graph_if_it_is_asked_for() -> None:
    low = {"precision": {"compute": "float8"}}
    assert decided(**low).fast == FastPaths(True, False, "auto")
    assert "float8 layers" in why(decided(**low), "cuda_graph")
    assert decided(**low, performance={"cuda_graph": True}).fast.cuda_graph


def test_under_zero_3_blocks_are_compiled_where_it_is_asked_for() -> None:
    asked = {"performance": {"compile": True}}
    assert "not proved on a GPU" in why(decided("deepspeed", 3), "compile")
    assert why(decided("deepspeed", 3, **asked), "compile") == "as asked"
    frozen = {"model": {"freeze": ["pos_embed"]}}
    for sections in (frozen, {**frozen, **asked}):
        assert "many small graphs" in why(decided("deepspeed", 3, **sections), "compile")


def test_under_zero_2_the_whole_model_is_one_graph() -> None:
    assert "whole model" in why(decided("deepspeed", 2), "compile")
    assert "block by block" in why(decided("fsdp2"), "compile")


def test_fsdp2_has_a_graph_if_it_is_asked_for() -> None:
    assert decided("fsdp2", performance={"cuda_graph": True}).fast.cuda_graph
    assert "with FSDP2" in why(decided("fsdp2"), "cuda_graph")


def test_muon_has_a_graph_if_it_is_asked_for() -> None:
    muon = {"name": "muon"}
    assert decided(optim=muon, performance={"cuda_graph": True}).fast.cuda_graph
    assert "with Muon" in why(decided(optim=muon), "cuda_graph")


@pytest.mark.parametrize(
    ("sections", "fast"),
    [
        ({"optim": {"name": "lamb"}}, FastPaths(True, False, "auto")),
        ({"precision": {"compute": "fp16"}}, FastPaths(True, False, "auto")),
        ({"model": {"dropout": 0.1}}, FastPaths(True, False, "auto")),
        ({"performance": {"checkpointing": True}}, FastPaths(False, False, "auto")),
        ({"train": {"deterministic": True}}, FastPaths(False, True, "default")),
        ({"performance": {"compile": False}}, FastPaths(False, True, "auto")),
        ({"performance": {"attention": "flash"}}, FastPaths(True, True, "flash")),
    ],
)
def test_what_stands_against_a_fast_path_turns_it_off(sections: dict[str, Any], fast: FastPaths) -> None:
    assert decided(**sections).fast == fast


def test_memory_efficient_linear_is_not_compiled() -> None:
    zero = {"zero_optimization": {"memory_efficient_linear": True}}
    assert not decided("deepspeed", 2, deepspeed=zero).fast.compile
    with pytest.raises(ConfigError, match="loses gradients"):
        decided("deepspeed", 2, deepspeed=zero, performance={"compile": True})


@pytest.mark.parametrize(
    ("spec", "compiler", "word"), [(None, "cc", "Triton is not installed"), (1, None, "C compiler")]
)
def test_without_a_compiler_a_run_goes_on_uncompiled(
    monkeypatch: pytest.MonkeyPatch, spec: int | None, compiler: str | None, word: str
) -> None:
    monkeypatch.setattr(performance_module, "find_spec", lambda _: spec)
    monkeypatch.setattr(performance_module.shutil, "which", lambda _: compiler)
    monkeypatch.delenv("CC")
    assert not decided().fast.compile
    assert word in why(decided(), "compile")
    assert decided(performance={"compile": True}).fast.compile  # what was asked for by name fails by itself


def test_what_auto_had_to_leave_out_is_said_once() -> None:
    config = built("fsdp2")
    said = fallbacks(config, decide(config, world_size=1, device_type="cuda").reasons)
    assert said == (
        "performance.cuda_graph is off (not proved with FSDP2 yet; performance.cuda_graph=true asks for it)",
    )
    config = built("fsdp2", performance={"cuda_graph": False})
    assert fallbacks(config, decide(config, world_size=1, device_type="cuda").reasons) == ()
