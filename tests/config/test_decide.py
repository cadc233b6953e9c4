"""config.decide: what is left open is decided with a reason; what cannot work together is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from vitscale.config.decide import Decisions, decide, optimizer_pair
from vitscale.config.load import build_config
from vitscale.errors import ConfigError, DeviceError

ENGINES = [("single", 0), ("ddp", 0), ("fsdp2", 0), *(("deepspeed", stage) for stage in range(4))]


def decided(world_size: int = 2, device: str | None = None, **sections: Any) -> Decisions:
    tree: dict[str, Any] = {"train": {"epochs": 1}}
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return decide(build_config(tree), world_size=world_size, device_type=device)


# --- engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "parallel", "engine", "why"),
    [
        (1, {}, "single", "one process"),
        (2, {}, "ddp", "2 processes"),
        (1, {"zero_stage": 1}, "deepspeed", "zero_stage"),
        (2, {"engine": "fsdp2"}, "fsdp2", "as asked"),
        (1, {"engine": "ddp"}, "ddp", "as asked"),
    ],
)
def test_engine(world_size: int, parallel: dict[str, Any], engine: str, why: str) -> None:
    decisions = decided(world_size, parallel=parallel)
    assert decisions.engine == engine
    assert why in decisions.reasons[0].why


def test_a_deepspeed_section_asks_for_deepspeed() -> None:
    assert decided(deepspeed={"wall_clock_breakdown": True}).engine == "deepspeed"


@pytest.mark.parametrize(
    ("world_size", "sections", "sentence"),
    [
        (2, {"parallel": {"engine": "single"}}, "parallel.engine=single runs one process, not 2"),
        (2, {"parallel": {"engine": "ddp", "zero_stage": 2}}, "zero_stage=2 has no effect with engine ddp"),
        (
            2,
            {"parallel": {"engine": "fsdp2"}, "deepspeed": {"wall_clock_breakdown": True}},
            "deepspeed section has no effect with engine fsdp2",
        ),
        (
            1,
            {"data": {"mixup": 0.2}, "train": {"micro_batch_size": 5}},
            "micro_batch_size=5 must be even",
        ),
    ],
)
def test_what_would_be_ignored_or_cannot_run_is_refused(world_size: int, sections: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        decided(world_size, **sections)


def test_every_key_left_open_has_a_reason() -> None:
    reasons = {reason.key: reason for reason in decided(train={"global_batch_size": 64}).reasons}
    assert reasons["train.micro_batch_size"].value == "32"
    assert "global_batch_size given" in reasons["train.micro_batch_size"].why
    assert reasons["train.grad_accum_steps"].value == "1"
    assert "train.global_batch_size" not in reasons
    assert reasons["precision"] == ("precision", "fp32/fp32/fp32", "fp32")


# --- optimizer and engine -----------------------------------------------------------------------------------------

# Written out, not derived: rows are optimizers, columns ENGINES; + runs and reshards, - runs only, x refused.
LEGAL_TABLE = {
    "adamw": "+++++++",
    "sgd": "++++---",
    "lamb": "++x+xxx",
    "muon": "++x+xxx",
}


@pytest.mark.parametrize("optimizer", LEGAL_TABLE)
def test_legal_table(optimizer: str) -> None:
    for (engine, stage), mark in zip(ENGINES, LEGAL_TABLE[optimizer], strict=True):
        pair = optimizer_pair(optimizer, engine, stage)
        assert (pair.legal, pair.resharding) == {"+": (True, True), "-": (True, False), "x": (False, False)}[mark]
        assert bool(pair.why) == (mark != "+")


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
@pytest.mark.parametrize(("engine", "stage"), [("fsdp2", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)])
def test_an_illegal_pair_is_refused_with_its_reason(optimizer: str, engine: str, stage: int) -> None:
    with pytest.raises(ConfigError, match=rf"optim.name={optimizer} does not work with engine {engine}.*whole tensors"):
        decided(optim={"name": optimizer}, parallel={"engine": engine, "zero_stage": stage})


def test_muon_needs_fp32_weights_or_masters() -> None:
    deepspeed = {"engine": "deepspeed"}
    with pytest.raises(ConfigError, match="muon needs fp32 weights under DeepSpeed"):
        decided(optim={"name": "muon"}, precision={"compute": "bf16"}, parallel=deepspeed)
    whole = {"compute": "bf16", "params": "fp32"}
    assert decided(optim={"name": "muon"}, precision=whole, parallel=deepspeed).engine == "deepspeed"
    assert decided(optim={"name": "muon"}, precision={"compute": "bf16"}).precision.params == "bf16"  # fp32 masters


# --- precision ----------------------------------------------------------------------------------------------------

AUTOCAST, MASTERS = "bf16 autocast over fp32 weights", "bf16 weights with fp32 masters"
FLOAT8 = "float8 layers over bf16 weights with fp32 masters"


@pytest.mark.parametrize(
    ("engine", "asked", "triple", "meaning"),
    [
        ("ddp", {}, "fp32/fp32/fp32", "fp32"),
        ("ddp", {"compute": "tf32"}, "tf32/fp32/fp32", "tf32"),
        ("ddp", {"compute": "bf16"}, "bf16/bf16/bf16", MASTERS),
        ("fsdp2", {"compute": "bf16", "reduce": "fp32"}, "bf16/bf16/fp32", MASTERS),
        ("deepspeed", {"compute": "bf16", "reduce": "fp32"}, "bf16/bf16/fp32", MASTERS),
        ("ddp", {"compute": "bf16", "params": "fp32"}, "bf16/fp32/fp32", AUTOCAST),
        ("ddp", {"compute": "bf16", "params": "fp32", "reduce": "bf16"}, "bf16/fp32/bf16", AUTOCAST),
        ("ddp", {"compute": "fp16"}, "fp16/fp32/fp32", "fp16 autocast over fp32 weights"),
        ("deepspeed", {"compute": "fp16"}, "fp16/fp16/fp16", "fp16 weights with fp32 masters"),
        ("ddp", {"compute": "float8"}, "float8/bf16/bf16", FLOAT8),
        ("fsdp2", {"compute": "float8", "reduce": "fp32"}, "float8/bf16/fp32", FLOAT8),
    ],
)
def test_precision_triples(engine: str, asked: dict[str, str], triple: str, meaning: str) -> None:
    precision = decided(parallel={"engine": engine}, precision=asked).precision
    assert "/".join(precision) == triple
    assert precision.meaning == meaning


@pytest.mark.parametrize(
    ("engine", "asked", "problem"),
    [
        ("ddp", {"compute": "fp32", "params": "bf16"}, "weights in bf16 need precision.compute=bf16"),
        ("ddp", {"compute": "bf16", "params": "fp16"}, "weights in fp16 need precision.compute=fp16"),
        (
            "ddp",
            {"compute": "fp16", "params": "fp16"},
            "fp16 weights are DeepSpeed's way; leave precision.params at fp32",
        ),
        (
            "deepspeed",
            {"compute": "fp16", "params": "fp32"},
            "DeepSpeed's fp16 keeps fp16 weights; leave precision.params unset",
        ),
        (
            "fsdp2",
            {"compute": "bf16", "params": "fp32", "reduce": "bf16"},
            "gradients of fp32 weights are reduced in fp32",
        ),
        ("ddp", {"compute": "bf16", "reduce": "fp32"}, "gradients of bf16 weights are reduced in bf16 here"),
        ("ddp", {"reduce": "fp16"}, "gradients of fp32 weights are reduced in fp32"),
        (
            "deepspeed",
            {"compute": "float8"},
            "float8 layers have not been proved under DeepSpeed's own casts; use single, ddp or fsdp2",
        ),
        (
            "fsdp2",
            {"compute": "float8", "params": "fp32"},
            "float8 layers cast bf16 weights; leave precision.params unset",
        ),
        ("ddp", {"compute": "float8", "reduce": "fp32"}, "gradients of bf16 weights are reduced in bf16 here"),
    ],
)
def test_triples_that_are_not_possible_say_why(engine: str, asked: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decided(parallel={"engine": engine}, precision=asked)
    assert str(caught.value).endswith(f"is not possible with engine {engine}: {problem}")


# --- device -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "compute", "sentence"),
    [
        ("ddp", "tf32", "tf32 needs an NVIDIA GPU"),
        ("fsdp2", "float8", "float8 needs an NVIDIA GPU since Ada or Hopper; use fp32 or bf16 on the CPU"),
        ("deepspeed", "fp16", "DeepSpeed has no fp16 on the CPU"),
    ],
)
def test_a_precision_that_the_cpu_lacks(engine: str, compute: str, sentence: str) -> None:
    sections = {"parallel": {"engine": engine}, "precision": {"compute": compute}}
    with pytest.raises(DeviceError, match=sentence):
        decided(device="cpu", **sections)
    for device in ("cuda", None):  # None: not known yet, so nothing is refused
        assert decided(device=device, **sections).precision.compute == compute


@pytest.mark.parametrize(("engine", "compute"), [("ddp", "fp16"), ("deepspeed", "bf16"), ("fsdp2", "bf16")])
def test_a_precision_that_the_cpu_has(engine: str, compute: str) -> None:
    decided(device="cpu", parallel={"engine": engine}, precision={"compute": compute})


# --- performance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"parallel": {"engine": "fsdp2"}, "optim": {"name": "sgd"}}, "fused SGD step"),
        ({"parallel": {"engine": "deepspeed"}}, "DeepSpeed's step waits for the host"),
        ({"optim": {"name": "lamb"}}, "optim.name=lamb has no fused step"),
        ({"precision": {"compute": "fp16"}}, "fp16's loss scale"),
        ({"model": {"dropout": 0.1}}, "model.dropout=0"),
        ({"performance": {"checkpointing": True}}, "performance.checkpointing=false"),
    ],
)
def test_what_cannot_be_one_graph_is_refused(sections: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"performance.cuda_graph=true is not possible here: .*{problem}"):
        decided(**{**sections, "performance": {**sections.get("performance", {}), "cuda_graph": True}})


def test_a_graph_needs_a_gpu_and_static_shapes() -> None:
    with pytest.raises(DeviceError, match=r"performance.cuda_graph=true needs an NVIDIA GPU"):
        decided(device="cpu", performance={"cuda_graph": True})
    assert decided(device="cuda", performance={"cuda_graph": True}).static_shapes
    assert decided(device="cpu", performance={"compile": True}).static_shapes
    assert not decided(device="cpu").static_shapes
