"""Axis names and what a value of an axis changes."""

import pytest

from vitscale.config.axes import axis_key, axis_name, changes
from vitscale.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "name", "key"),
    [
        ("micro_batch_size", "micro_batch_size", "train.micro_batch_size"),
        ("train.micro_batch_size", "micro_batch_size", "train.micro_batch_size"),
        ("parallel.zero_stage", "zero_stage", "parallel.zero_stage"),
        ("img_size", "img_size", "model.img_size"),
        ("model", "model", "model.name"),
        ("model.name", "model", "model.name"),
        ("optim.name", "optimizer", "optim.name"),
        ("eval.micro_batch_size", "eval.micro_batch_size", "eval.micro_batch_size"),
        ("deepspeed.zero_optimization.overlap_comm", "deepspeed.zero_optimization.overlap_comm", None),
        ("world_size", "world_size", None),
        ("precision", "precision", None),
    ],
)
def test_one_name_for_each_axis(given, name, key):
    assert axis_name(given) == name
    if key is not None:
        assert axis_key(name) == key


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("micro_batch", "did you mean micro_batch_size?"),
        ("world", "an axis is world_size, nodes"),
        ("every_epochs", "axes.eval.every_epochs or axes.checkpoint.every_epochs"),
        ("epochs", "set measure.updates or measure.epochs"),
        ("train.max_updates", "no axis"),
        ("deepspeed", "unknown axis deepspeed"),
    ],
)
def test_other_names_are_refused_with_the_nearest(name, part):
    with pytest.raises(ConfigError) as caught:
        axis_name(name)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "tree"),
    [
        ("engine", "deepspeed:2", {"parallel": {"engine": "deepspeed", "zero_stage": 2}}),
        ("engine", "ddp", {"parallel": {"engine": "ddp"}}),
        ("precision", "bf16/fp32/fp32", {"precision": {"compute": "bf16", "params": "fp32", "reduce": "fp32"}}),
        ("precision", "bf16", {"precision": {"compute": "bf16", "params": None, "reduce": None}}),
        ("micro_batch_size", 16, {"train": {"micro_batch_size": 16}}),
        ("deepspeed.zero_optimization.x", 1, {"deepspeed": {"zero_optimization": {"x": 1}}}),
        ("world_size", 2, {}),
    ],
)
def test_values_become_trees(name, value, tree):
    assert changes(name, value) == tree


@pytest.mark.parametrize(
    ("name", "value"), [("engine", "deepspeed:4"), ("engine", "ddp:1"), ("precision", "bf16/fp32")]
)
def test_values_that_mean_nothing_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"axes.{name}"):
        changes(name, value)
