"""Axes to cases: the modes, what is dropped, what is skipped, names and order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vitscale.config.run import DataConfig
from vitscale.config.study import StudyConfig
from vitscale.data.sources import open_splits
from vitscale.errors import ConfigError
from vitscale.study.expand import Case, check_count, config_hash, expand, running_order, train_images

BASE: dict[str, Any] = {
    "model": {"name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 2, "in_chans": 1},
    "data": {"source": "digits"},
    "train": {"micro_batch_size": 16, "grad_accum_steps": 1},
}


def study(**keys: Any) -> StudyConfig:
    return StudyConfig.model_validate({"base": BASE, "measure": {"updates": 20}, **keys})


def with_train(**train: Any) -> dict[str, Any]:
    return {**BASE, "train": train}


def batches(config: StudyConfig) -> dict[str, tuple[int, ...] | None]:
    return {case.name: case.decisions and tuple(case.decisions.batch) for case in expand(config, "cpu").cases}


def only(config: StudyConfig) -> Case:
    (case,) = expand(config, "cpu").cases
    return case


def test_the_product_of_the_axes_in_their_order() -> None:
    names = list(batches(study(axes={"engine": ["ddp", "fsdp2"], "micro_batch_size": [8, 16]})))
    assert names == [
        "engine=ddp micro_batch_size=8", "engine=ddp micro_batch_size=16",
        "engine=fsdp2 micro_batch_size=8", "engine=fsdp2 micro_batch_size=16",
    ]  # fmt: skip


def test_strong_with_the_global_batch_fixed_divides_it() -> None:
    config = study(
        base=with_train(global_batch_size=64, micro_batch_size=64, grad_accum_steps=1),
        mode="strong", fixed="global", axes={"world_size": [1, 2, 4]},
    )  # fmt: skip
    assert batches(config) == {"world_size=1": (64, 1, 64), "world_size=2": (32, 1, 64), "world_size=4": (16, 1, 64)}


def test_strong_with_the_global_batch_fixed_and_a_micro_batch_axis_accumulates() -> None:
    config = study(
        base=with_train(global_batch_size=64, grad_accum_steps=1),
        mode="strong", fixed="global", axes={"world_size": [1, 2], "micro_batch_size": [16]},
    )  # fmt: skip
    assert list(batches(config).values()) == [(16, 4, 64), (16, 2, 64)]


def test_strong_with_the_per_device_batch_fixed_lets_the_global_batch_grow() -> None:
    config = study(
        base=with_train(micro_batch_size=16, grad_accum_steps=2, global_batch_size=32),
        mode="strong", fixed="per_device", axes={"world_size": [1, 2]},
    )  # fmt: skip
    assert list(batches(config).values()) == [(16, 2, 32), (16, 2, 64)]
    assert {case.config.data.train_limit for case in expand(config).cases} == {None}


def test_weak_gives_each_device_its_images() -> None:
    config = study(mode="weak", images_per_device=100, measure={"epochs": 2}, axes={"world_size": [1, 4]})
    cases = expand(config, "cpu").cases
    assert [case.config.data.train_limit for case in cases] == [100, 400]
    assert [case.decisions and case.decisions.batch.global_batch_size for case in cases] == [16, 64]


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"mode": "strong", "fixed": "global"}, "fixed=global needs base.train.global_batch_size"),
        ({"mode": "strong", "fixed": "per_device", "base": with_train(global_batch_size=8)}, "fixed=per_device needs"),
        ({"mode": "weak", "base": with_train(global_batch_size=8)}, "mode=weak needs base.train.micro_batch_size"),
    ],
)
def test_a_mode_says_which_key_it_needs(keys: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        expand(study(axes={"world_size": [1, 2]}, **keys))


def test_length_by_updates_has_no_evaluation_and_no_checkpoint() -> None:
    config = only(study(measure={"warmup_updates": 3, "updates": 20, "trace_updates": 10})).config
    assert (config.train.max_updates, config.train.epochs) == (33, None)
    assert (config.eval.every_epochs, config.eval.every_updates) == (None, None)
    assert (config.checkpoint.every_epochs, config.checkpoint.every_updates, config.checkpoint.keep_best) == (
        None, None, False,
    )  # fmt: skip
    assert not config.log.tensorboard


@pytest.mark.parametrize(("given", "epochs", "every"), [(5, 6, 1), (5, 30, 5), (4, 6, 2), (None, 6, 1)])
def test_length_by_epochs_evaluates_the_end(given: int | None, epochs: int, every: int) -> None:
    config = only(study(base={**BASE, "eval": {"every_epochs": given}}, measure={"epochs": epochs})).config
    assert (config.train.epochs, config.train.max_updates, config.eval.every_epochs) == (epochs, None, every)


def test_a_target_is_handed_on() -> None:
    config = only(study(measure={"epochs": 6, "target_top1": 0.9})).config
    assert (config.train.target_top1, config.train.epochs) == (0.9, 6)


def test_engine_and_stage_in_one_word() -> None:
    case = only(study(axes={"engine": ["deepspeed:3"], "world_size": [2]}))
    assert case.decisions is not None
    assert (case.decisions.engine, case.decisions.zero_stage) == ("deepspeed", 3)


def test_settings_of_deepspeed_leave_other_engines_alone() -> None:
    base = {**BASE, "deepspeed": {"zero_optimization": {"overlap_comm": True}}}
    config = study(base=base, axes={"engine": ["ddp", "deepspeed"], "zero_stage": [0, 1, 2], "world_size": [2]})
    cases = expand(config, "cpu").cases
    assert [case.name for case in cases] == [
        "engine=ddp world_size=2",
        *(f"engine=deepspeed zero_stage={stage} world_size=2" for stage in (0, 1, 2)),
    ]
    assert cases[0].config.deepspeed == {}
    assert cases[1].config.deepspeed["zero_optimization"] == {"overlap_comm": True}
    assert "zero_stage" not in cases[0].axes


def test_single_on_two_processes_is_dropped_with_a_note() -> None:
    expansion = expand(study(axes={"engine": ["single", "ddp"], "world_size": [1, 2]}), "cpu")
    assert len(expansion.cases) == 3
    assert expansion.notes == ("engine=single world_size=2 is dropped: single runs one process",)


def test_the_same_run_twice_is_dropped_with_a_note() -> None:
    config = study(axes={"engine": ["auto", "ddp"], "world_size": [2]})
    expansion = expand(config, "cpu")
    assert [case.name for case in expansion.cases] == ["engine=auto world_size=2"]
    assert expansion.notes == ("engine=ddp world_size=2 is dropped: it is the same run as engine=auto world_size=2",)


def test_exclude_takes_out_by_some_of_the_values() -> None:
    axes = {"engine": ["ddp", "fsdp2"], "micro_batch_size": [8, 16, 32]}
    config = study(axes=axes, exclude=[{"engine": "fsdp2", "micro_batch_size": [8, 16]}, {"micro_batch_size": 32}])
    assert list(batches(config)) == ["engine=ddp micro_batch_size=8", "engine=ddp micro_batch_size=16"]


def test_nothing_left_and_nothing_that_runs_are_errors() -> None:
    with pytest.raises(ConfigError, match="no case is left"):
        expand(study(axes={"engine": ["ddp"]}, exclude=[{"engine": "ddp"}]))
    with pytest.raises(ConfigError, match="no case is left"):
        expand(study(axes={"engine": ["single"], "world_size": [2]}))
    with pytest.raises(ConfigError, match="no case of this study can run"):
        expand(study(axes={"optimizer": ["lamb"], "engine": ["fsdp2"]}))


def test_what_the_legal_tables_refuse_is_a_case_with_its_reason() -> None:
    cases = expand(study(axes={"optimizer": ["adamw", "lamb"], "engine": ["fsdp2"], "world_size": [2]}), "cpu").cases
    assert [bool(case.skip_reason) for case in cases] == [False, True]
    assert cases[1].skip_reason is not None
    assert "optim.name=lamb does not work with engine fsdp2" in cases[1].skip_reason
    sizes = expand(study(axes={"img_size": [8, 9]}), "cpu").cases
    assert sizes[1].skip_reason is not None
    assert "model.img_size=9 is not a multiple" in sizes[1].skip_reason


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({"axes": {"micro_batch_size": [8, "many"]}}, "case micro_batch_size=many: train.micro_batch_size=many"),
        ({"base": {**BASE, "optim": {"lrr": 1}}, "axes": {"seed": [1]}}, "base: unknown key optim.lrr"),
        ({"axes": {"engine": ["horovod"]}}, "case engine=horovod: parallel.engine=horovod"),
    ],
)
def test_a_value_that_no_config_takes_is_an_error(keys: dict[str, Any], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(study(**keys))
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        ({"nodes": [1, 2], "devices_per_node": [4]}, [(4, 1), (8, 2)]),
        ({"world_size": [4], "nodes": [1, 2]}, [(4, 1), (4, 2)]),
        ({"world_size": [8], "devices_per_node": [4]}, [(8, 2)]),
        ({}, [(1, 1)]),
    ],
)
def test_nodes_and_devices_per_node(axes: dict[str, Any], sizes: list[tuple[int, int]]) -> None:
    assert [(case.world_size, case.nodes) for case in expand(study(axes=axes)).cases] == sizes


def test_a_layout_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"axes\.world_size=3 does not divide over nodes=2"):
        expand(study(axes={"world_size": [3], "nodes": [2]}))


def test_over_a_thousand_runs_need_a_yes() -> None:
    large = study(axes={"seed": list(range(101)), "micro_batch_size": [1, 2]}, repeats=5)
    with pytest.raises(ConfigError, match=r"up to 1,010 runs .* --yes"):
        check_count(large, yes=False)
    check_count(large, yes=True)
    check_count(study(axes={"seed": list(range(100)), "micro_batch_size": [1, 2]}, repeats=5), yes=False)


def test_every_round_has_each_case_once_in_another_order() -> None:
    order = running_order(6, 4, seed=0)
    rounds = [[case for case, repeat in order if repeat == number] for number in range(4)]
    assert all(Counter(case for case in cases) == Counter(range(6)) for cases in rounds)
    assert [repeat for _, repeat in order] == sorted(repeat for _, repeat in order)
    assert len({tuple(cases) for cases in rounds}) > 1
    assert running_order(6, 4, seed=0) == order
    assert running_order(6, 4, seed=1) != order


def test_folders_are_safe_whatever_an_axis_holds(tmp_path: Path) -> None:
    evil = "../../<script>alert(1)</script>/x" + "y" * 300
    config = study(axes={"model.kwargs.norm_layer": [evil, evil + "z"]})
    folders = [case.folder(0) for case in expand(config, "cpu").cases]
    assert len(set(folders)) == 2
    for folder in folders:
        (tmp_path / folder).mkdir()
        assert (tmp_path / folder).resolve().parent == tmp_path.resolve()
        assert not set(folder) & set("/<>()\\ ")
        assert len(folder) < 100


def test_repeats_share_a_seed_unless_accuracy_is_looked_at() -> None:
    case = only(study())
    assert case.config_of(2, vary_seed=False).train.seed == 0
    assert [case.config_of(repeat, vary_seed=True).train.seed for repeat in range(3)] == [0, 1, 2]
    assert config_hash(case.config_of(2, vary_seed=True)) == config_hash(case.config)
    other = only(study(axes={"micro_batch_size": [8]}))
    assert config_hash(other.config) != config_hash(case.config)


def test_weak_scaling_that_asks_for_more_images_than_there_are_is_refused() -> None:
    keys = {"mode": "weak", "measure": {"epochs": 2}, "axes": {"world_size": [1, 2]}}
    assert len(expand(study(images_per_device=719, **keys)).cases) == 2
    with pytest.raises(ConfigError, match=r"images_per_device=720 x world_size=2 asks for 1,440 .* digits has 1,438"):
        expand(study(images_per_device=720, **keys))
    unknown = {**BASE, "data": {"source": "npz", "root": "a.npz"}}  # the run says it, in a note
    assert len(expand(study(base=unknown, images_per_device=720, **keys)).cases) == 2


def test_the_sizes_that_planning_knows_are_those_of_the_sources() -> None:
    for data in (DataConfig(), DataConfig(source="synthetic", synthetic_size=77)):
        splits = open_splits(data, img_size=8, in_chans=1, num_classes=None, seed=0)
        assert train_images(data) == len(splits.train)
    assert train_images(DataConfig(val_fraction=0.1)) is None
