"""`vitscale show`, `recipes` and `env`."""

import json

from vitscale.config.load import load_config


def test_what_show_prints_is_the_config(vitscale, tmp_path):
    done = vitscale("show", "digits", "optim.lr=1e-3", "--nproc", "2")
    path = tmp_path / "my.yaml"
    path.write_text(done.stdout)
    assert load_config(path) == load_config("digits", ["optim.lr=1e-3"])
    assert "# decided for 2 processes:" in done.stdout
    assert "parallel.engine = ddp  (auto: 2 processes)" in done.stdout
    assert "parameters = 202,186" in done.stdout
    assert "DeepSpeed" not in done.stdout


def test_show_prints_the_json_that_deepspeed_gets(vitscale, tmp_path):
    ds = tmp_path / "ds.json"
    ds.write_text('{"zero_optimization": {"overlap_comm": true}}')
    arguments = ("parallel.engine=deepspeed", "parallel.zero_stage=2", "--ds-config", str(ds), "--nproc", "2")
    done = vitscale("show", "digits", *arguments)
    text = done.stdout.partition("# the JSON that DeepSpeed gets:\n")[2]
    settings = json.loads("\n".join(line.removeprefix("# ") for line in text.splitlines()))
    assert settings["zero_optimization"]["stage"] == 2
    assert settings["zero_optimization"]["overlap_comm"] is True
    assert settings["gradient_clipping"] == 0.0
    shown = json.loads(vitscale("show", "digits", *arguments, "--json").stdout)
    assert shown["deepspeed_json"] == settings
    assert shown["config"]["optim"]["lr"] == 3e-3
    assert {"key", "value", "why"} == set(shown["decisions"][0])


def test_show_does_not_count_what_it_cannot(vitscale):
    done = vitscale(
        "show", "digits", "model.name=vit_base_patch16_18x2_224", "model.embed_dim=none", "model.num_heads=none"
    )
    assert "= n/a" in done.stdout


def test_show_says_what_float8_does_and_where_it_pays(vitscale):
    text = vitscale("show", "digits", "precision.compute=float8").stdout
    assert "precision = float8/bf16/bf16  (float8 layers over bf16 weights with fp32 masters)" in text
    assert "precision.compute = float8  (while training, the blocks' linear layers multiply in float8" in text
    assert "meant for ViT-L and larger" in text


def test_show_refuses_what_decide_refuses(vitscale):
    done = vitscale("show", "digits", "parallel.engine=single", "--nproc", "2")
    assert done.returncode == 2
    assert "parallel.engine=single" in done.stderr


def test_recipes_as_a_table_and_as_json(vitscale):
    listed = json.loads(vitscale("recipes", "--json").stdout)
    assert {"name", "kind", "hardware", "time", "expected", "summary"} == set(listed[0])
    table = vitscale("recipes", COLUMNS="200").stdout
    for recipe in listed:
        assert recipe["name"] in table


def test_env_names_versions_and_devices(vitscale):
    table = vitscale("env").stdout
    assert "torch" in table
    assert "CPU" in table
    assert json.loads(vitscale("env", "--json").stdout)["packages"]["torch"]
