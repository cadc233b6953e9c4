"""load_config and dump_config: order of sources, round trip, and one sentence per mistake."""

import json
from pathlib import Path

import pytest

from vitscale.config.load import build_config, dump_config, load_config, recipes
from vitscale.errors import ConfigError


def problem(*overrides: str, source: str | Path = "digits", **arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides, **arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("recipe", [recipe.name for recipe in recipes()])
def test_every_recipe_loads_and_survives_a_round_trip(recipe, tmp_path):
    config = load_config(recipe)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_digits_is_the_recipe_of_the_issue():
    config = load_config("digits")
    model = config.model
    assert (model.img_size, model.patch_size, model.in_chans, model.embed_dim, model.depth) == (8, 2, 1, 64, 4)
    assert (model.global_pool, config.optim.name, config.optim.lr) == ("avg", "adamw", 3e-3)
    assert (config.train.global_batch_size, config.train.epochs) == (32, 30)


def test_later_sources_win(tmp_path):
    path, ds = tmp_path / "my.yaml", tmp_path / "ds.json"
    path.write_text(
        "train: {epochs: 1}\nparallel: {engine: deepspeed}\ndeepspeed: {dump_state: true, log_level: info}\n"
    )
    ds.write_text(json.dumps({"dump_state": False, "wall_clock_breakdown": True}))
    config = load_config(path, ["deepspeed.wall_clock_breakdown=false", "train.epochs=2"], ds)
    assert config.deepspeed == {"dump_state": False, "log_level": "info", "wall_clock_breakdown": False}
    assert config.train.epochs == 2


@pytest.mark.parametrize("word", ["none", "None", "null", "~"])
def test_a_value_that_may_be_none_is_cleared(word):
    assert load_config("digits", [f"model.img_size={word}"]).model.img_size is None


def test_none_stays_a_word_where_it_is_a_choice():
    config = load_config("digits", ["optim.lr_scaling=none", "train.class_weights=none"])
    assert config.optim.lr_scaling == "none"
    assert config.train.class_weights == "none"


def test_empty_sections_are_the_defaults(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("train: {epochs: 1}\noptim:\ndeepspeed:\nmodel: {kwargs: }\n")
    config = load_config(path)
    assert config.optim.name == "adamw"
    assert config.deepspeed == config.model.kwargs == {}


def test_a_lone_word_is_a_list_and_a_tilde_is_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    config = load_config("digits", ["model.freeze=backbone", "model.pretrained=~/w.safetensors"])
    assert config.model.freeze == ("backbone",)
    assert config.model.pretrained == Path("/home/ada/w.safetensors")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("optim.learning_rate=1", ["unknown key optim.learning_rate", "did you mean optim.lr?"]),
        ("optim.warmup_update=1", ["did you mean optim.warmup_updates?"]),
        ("lr=1", ["unknown key lr", "did you mean optim.lr?"]),
        ("train.stage=1", ["did you mean parallel.zero_stage?"]),
        ("zzz.q=1", ["unknown key zzz", "the keys here are model, data"]),
        ("optim.name=adam", ["optim.name=adam must be one of adamw, sgd", "did you mean adamw?"]),
        ("optim.lr=abc", ["optim.lr=abc must be a number > 0"]),
        ("optim.lr=-1", ["optim.lr=-1 must be a number > 0"]),
        ("optim.lr=.nan", ["optim.lr=nan must be a number"]),
        ("train.epochs=2.5", ["train.epochs=2.5 must be a whole number > 0, or none"]),
        ("train.epochs=true", ["train.epochs=true", "not true or false"]),
        ("performance.compile=maybe", ["performance.compile=maybe must be true or false"]),
        ("parallel.zero_stage=4", ["must be a whole number >= 0 and <= 3"]),
        ("optim.betas=[0.9]", ["optim.betas=[0.9] must be a list of 2"]),
        ("optim.lr_scaling=null", ["optim.lr_scaling=null must be one of none, linear, sqrt"]),
        ("train.class_weights=foo", ["must be one of none, balanced, or a list, each a number >= 0"]),
        ("optim=3", ["optim is a section and holds keys, not 3"]),
        ("model.kwargs=3", ["model.kwargs is a section"]),
        ("train.epochs=none", ["train.epochs or train.max_updates must be given"]),
        ("train=none", ["train.epochs or train.max_updates must be given"]),
        ("train.target_top1=90", ["train.target_top1=90", "<= 1"]),
        ("data.source=folder", ["data.source=folder needs data.root"]),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(override, parts):
    sentence = problem(override)
    for part in parts:
        assert part in sentence


def test_several_mistakes_are_counted_and_the_unknown_key_comes_first():
    assert problem("optim.lr=-1", "optim.foo=1", "train.epochs=0").startswith("unknown key optim.foo")
    assert "(2 more problems after that)" in problem("optim.lr=-1", "optim.foo=1", "train.epochs=0")


def test_an_unknown_recipe_names_the_nearest():
    sentence = problem(source="digts")
    assert "no recipe 'digts' (did you mean digits?)" in sentence
    assert "vitscale recipes" in sentence


@pytest.mark.parametrize(
    ("text", "part"),
    [("", "must hold sections and keys, not nothing"), ("- 1", "must hold sections"), ("a: 1\na: 2", "given twice")],
)
def test_a_file_that_is_no_config(tmp_path, text, part):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    assert part in problem(source=path)
    assert str(path) in problem(source=str(path))


def test_files_that_cannot_be_read(tmp_path):
    assert "does not exist" in problem(source=str(tmp_path / "no.yaml"))
    assert "cannot be read" in problem(source=tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is not text in UTF-8" in problem(source=binary)


@pytest.mark.parametrize(
    ("text", "part"), [("{", "not readable JSON"), ('{"a": 1, "a": 2}', "given twice"), ("3", "must hold")]
)
def test_a_deepspeed_file_that_is_no_json(tmp_path, text, part):
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert part in problem(ds_config=path)


def test_a_missing_deepspeed_file(tmp_path):
    assert "does not exist" in problem(ds_config=tmp_path / "ds.json")


def test_the_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_config("digits").train.epochs = 3


def test_deepspeed_linear_and_compile_exclude_each_other():
    tree = {
        "train": {"epochs": 1},
        "parallel": {"engine": "deepspeed", "zero_stage": 3},
        "performance": {"compile": True},
        "deepspeed": {"zero_optimization": {"memory_efficient_linear": True}},
    }
    with pytest.raises(ConfigError, match="loses gradients"):
        build_config(tree)
    assert build_config({**tree, "performance": {}}).deepspeed


def test_recipes_say_what_they_are():
    listed = recipes()
    assert [recipe.name for recipe in listed] == sorted(recipe.name for recipe in listed)
    assert {"digits", "cifar10-vit-b16", "cifar10-small", "imagenet-vit-s16", "synthetic-vit-b16"} <= {
        r.name for r in listed
    }
    for recipe in listed:
        assert all((recipe.kind, recipe.hardware, recipe.time, recipe.expected, recipe.summary))


def test_a_target_needs_evaluations():
    with pytest.raises(ConfigError, match=r"train\.target_top1 needs eval\.every_epochs"):
        load_config("digits", ["train.target_top1=0.9", "eval.every_epochs=none"])
    assert load_config("digits", ["train.target_top1=0.9"]).train.target_top1 == 0.9
