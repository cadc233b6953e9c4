"""YAML and overrides become trees; what cannot be read is one sentence."""

import pytest

from vitscale.config.overrides import apply_overrides, merge, parse_override, parse_yaml
from vitscale.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("1e5", 1e5), ("-2.5E+3", -2500.0), (".5e1", 5.0), ("1e", "1e"), ("3", 3), ("0.5", 0.5)],
)
def test_numbers_are_numbers(text, value):
    parsed = parse_yaml(text, "here")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("optim.lr=3e-4", ["optim", "lr"], 3e-4),
        ("optim.betas=[0.9, 0.95]", ["optim", "betas"], [0.9, 0.95]),
        ("data.root=/a/b=c", ["data", "root"], "/a/b=c"),
        ("optim={name: sgd}", ["optim"], {"name": "sgd"}),
    ],
)
def test_an_override_is_a_path_and_a_value(text, path, value):
    assert parse_override(text) == (path, value)


@pytest.mark.parametrize("text", ["optim.lr", "=3", "optim..lr=3", "--lr=3", "optim.lr =", "optim.lr=[1", "a b=1"])
def test_what_is_no_override_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert "\n" not in str(caught.value)


def test_overrides_apply_in_order_and_leave_the_tree_alone():
    tree = {"optim": {"lr": 1.0, "name": "sgd"}}
    changed = apply_overrides(tree, ["optim.lr=2", "optim.lr=3", "train.epochs=4"])
    assert changed == {"optim": {"lr": 3, "name": "sgd"}, "train": {"epochs": 4}}
    assert tree == {"optim": {"lr": 1.0, "name": "sgd"}}


def test_a_value_holds_no_keys():
    with pytest.raises(ConfigError, match=r"optim\.lr is a value, not a section"):
        apply_overrides({"optim": {"lr": 1.0}}, ["optim.lr.x=2"])


def test_merge_goes_section_by_section():
    assert merge({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}, "b": {"z": 5}}) == {
        "a": {"x": 1, "y": 4},
        "b": {"z": 5},
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1\na: 2", "given twice"),
        ("a: [1", "not valid YAML"),
        ("1: 2", "must be text"),
        ("a: !!python/object:x {}", "YAML"),
    ],
)
def test_bad_yaml_names_its_place(text, part):
    with pytest.raises(ConfigError, match=f"(?s)my.yaml.*{part}"):
        parse_yaml(text, "my.yaml")
