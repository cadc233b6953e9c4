"""Which DeepSpeed keys are let through, and that the table is the installed version's."""

import json
from importlib.metadata import version
from importlib.resources import files

import pytest

from vitscale.config import deepspeed_keys
from vitscale.config.deepspeed_keys import check_deepspeed_section
from vitscale.errors import ConfigError

TABLE = files("vitscale.config") / "deepspeed_keys" / f"{version('deepspeed')}.json"


def test_the_table_is_what_the_installed_version_reads():
    from deepspeed_table import table

    assert json.loads(TABLE.read_text()) == table()


def test_every_key_that_is_ours_exists_there():
    known = json.loads(TABLE.read_text())["keys"]
    for key in deepspeed_keys._OURS:
        inside = known
        for part in key.split("."):
            assert part in inside, key
            inside = inside[part]


@pytest.mark.parametrize(
    "section",
    [
        {"zero_optimization": {"overlap_comm": True, "stage3_prefetch_bucket_size": 1, "prefetch_bucket_size": "auto"}},
        {"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": False}}},
        {"zero_optimization": {"offload_param": None}},
        {"fp16": {"initial_scale_power": 8}, "wall_clock_breakdown": True},
        {"aio": {"block_size": 1048576}, "comms_logger": {"enabled": True}, "steps_per_print": 5},
    ],
)
def test_keys_that_only_deepspeed_has_are_let_through(section):
    check_deepspeed_section(section)


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ({"micro_batch_per_gpu": 4}, ["does not know deepspeed.micro_batch_per_gpu", "set train.micro_batch_size"]),
        ({"zero_optimization": {"overlap_com": 1}}, ["did you mean deepspeed.zero_optimization.overlap_comm?"]),
        ({"overlap_comm": 1}, ["did you mean deepspeed.zero_optimization.overlap_comm?"]),
        ({"zero_optimization": {"offload_optimizer": {"devic": 1}}}, ["offload_optimizer.device?"]),
        ({"qqq": 1}, ["does not know deepspeed.qqq", "https://"]),
        ({"zero_optimization": 3}, ["deepspeed.zero_optimization is a section"]),
        ({"nebula": {}}, ["no longer has it"]),
        ({"train_batch_size": 4}, ["decided by vitscale: set train.global_batch_size"]),
        ({"train_micro_batch_size_per_gpu": "auto"}, ["set train.micro_batch_size"]),
        ({"gradient_accumulation_steps": 1}, ["set train.grad_accum_steps"]),
        ({"gradient_clipping": 1.0}, ["set optim.clip_grad"]),
        ({"optimizer": {"type": "Adam"}}, ["set optim.name"]),
        ({"scheduler": {"type": "WarmupLR"}}, ["set optim.schedule"]),
        ({"fp16": {"enabled": True}}, ["deepspeed.fp16.enabled", "precision.compute=fp16"]),
        ({"bf16": {"enabled": False}}, ["precision.compute=bf16"]),
        ({"torch_autocast": {"enabled": True}}, ["precision.params=fp32"]),
        ({"zero_optimization": {"stage": 2}}, ["set parallel.zero_stage"]),
        ({"communication_data_type": "fp32"}, ["set precision.reduce"]),
        ({"checkpoint": {"load_universal": True}}, ["handled at resume"]),
        ({"activation_checkpointing": {}}, ["performance.checkpointing"]),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, ["trains on wrong values"]),
    ],
)
def test_what_is_unknown_or_ours_is_refused_by_name(section, parts):
    with pytest.raises(ConfigError) as caught:
        check_deepspeed_section(section)
    sentence = str(caught.value)
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("installed", "chosen"), [("0.19.8", "0.19.8"), ("0.19.9+cu13", "0.19.8"), ("0.1.0", "0.19.8")]
)
def test_the_nearest_table_below_the_installed_version_is_used(monkeypatch, installed, chosen):
    monkeypatch.setattr(deepspeed_keys, "version", lambda name: installed)
    deepspeed_keys._table.cache_clear()
    try:
        assert deepspeed_keys._table()["deepspeed"] == chosen
    finally:
        deepspeed_keys._table.cache_clear()
