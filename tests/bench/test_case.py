"""bench.case: which rows a bench has, and that only equal triples meet."""

from __future__ import annotations

import pytest

from vitscale.bench import case as bench_case
from vitscale.bench.case import AUTOCAST, FSDP_MASTERS, MASTERS, OURS, Case, cases, spec_of
from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError


def config(*overrides: str) -> RunConfig:
    return load_config("digits", overrides)


def ours(rows: list[Case]) -> list[Case]:
    return [row for row in rows if row.who.startswith(OURS)]


def test_every_peers_triple_has_a_row_of_ours() -> None:
    rows = cases(config("precision.compute=bf16"), 2, "cuda")
    assert {row.precision for row in ours(rows)} == {AUTOCAST, MASTERS, FSDP_MASTERS}
    assert {row.who for row in rows if row.peer == "raw_deepspeed"} == {f"raw DeepSpeed ZeRO {n}" for n in range(4)}
    for row in ours(rows):
        assert row.problem is None
        assert row.config is not None
        assert tuple(row.config["precision"].values()) == row.precision
    assert "fsdp2" in next(row.who for row in ours(rows) if row.precision == FSDP_MASTERS)


def test_float8_meets_no_peer_in_its_triple_and_stands_beside_bf16() -> None:
    rows = cases(config("precision.compute=float8"), 1, "cuda")
    assert {row.precision for row in rows if row.peer} == {AUTOCAST, MASTERS, FSDP_MASTERS}
    triples = [row.precision for row in ours(rows) if row.problem is None]
    assert triples[:4] == [AUTOCAST, FSDP_MASTERS, MASTERS, ("float8", "bf16", "bf16")]
    assert set(triples[4:]) == {MASTERS}  # our other engines


def test_our_own_engines_stand_beside_each_other() -> None:
    rows = ours(cases(config("precision.compute=bf16"), 1, "cuda"))
    who = [row.who for row in rows if row.precision == MASTERS]
    assert who == ["vitscale single", "vitscale fsdp2", *(f"vitscale deepspeed ZeRO {stage}" for stage in range(4))]
    lamb = ours(cases(config("precision.compute=bf16", "optim.name=lamb"), 1, "cuda"))
    assert "whole tensors" in str(next(row.problem for row in lamb if row.who == "vitscale fsdp2"))


def test_only_the_rows_that_are_named() -> None:
    titles = [row.title for row in cases(config("performance.compile=true"), 1, "cuda", ["timm", "vitscale single"])]
    assert titles == ["vitscale single + compile + CUDA graph", "plain timm loop", "plain timm loop + compile"]
    with pytest.raises(ConfigError, match="--only pigeon fits none of the rows: vitscale single"):
        cases(config(), 1, "cpu", ["pigeon"])


def test_one_process_has_a_plain_loop_and_a_compiled_one_on_a_gpu_only() -> None:
    assert [row.compile for row in cases(config(), 1, "cuda") if row.peer == "timm_loop"] == [False, True]
    assert [row.compile for row in cases(config(), 1, "cpu") if row.peer == "timm_loop"] == [False]
    assert not [row for row in cases(config(), 2, "cuda") if row.peer == "timm_loop"]


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_case, "find_spec", lambda _: None)
    problems = {row.who: row.problem for row in cases(config(), 1, "cpu")}
    assert problems["raw DeepSpeed ZeRO 2"] == "deepspeed is not installed"
    assert problems["torchtitan"] == "its trainer takes no Vision Transformer"


def test_names_of_rows_differ() -> None:
    rows = cases(config("precision.compute=bf16"), 1, "cuda")
    assert len({row.name for row in rows}) == len(rows)


def test_the_work_is_the_configs() -> None:
    run = config()
    spec = spec_of(run, decide(run, world_size=2), 10)
    assert (spec.model, spec.img_size, spec.micro_batch_size, spec.in_chans) == ("vit_tiny_patch16_224", 8, 16, 1)
    assert spec.model_kwargs["embed_dim"] == 64
    assert spec.model_kwargs["patch_size"] == 2


def test_peers_have_no_convolutional_stem() -> None:
    config = load_config("verify", ["model.stem=conv"])
    with pytest.raises(ConfigError, match=r"model\.stem=conv is not what the peers"):
        spec_of(config, decide(config, world_size=1), 10)
