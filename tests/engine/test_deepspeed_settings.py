"""The JSON that DeepSpeed gets: defaults for speed and who overrides them; refused values are named by their keys."""

from __future__ import annotations

from typing import Any

import pytest
from engine_making import BF16, config_of
from pydantic import BaseModel

from vitscale.config.decide import decide
from vitscale.engine.deepspeed.settings import (
    deepspeed_reasons,
    deepspeed_settings,
    naming_refused_keys,
    steps_masters,
)
from vitscale.errors import ConfigError


class Zero(BaseModel):
    """As DeepSpeed's own sections are made."""

    overlap_comm: bool


def test_a_refused_value_is_named_by_its_dotted_key() -> None:
    section: dict[str, Any] = {"steps_per_print": 1, "zero_optimization": {"overlap_comm": "maybe"}}
    sentence = (
        r"^deepspeed\.zero_optimization\.overlap_comm=maybe is refused by DeepSpeed: Input should be a valid bool"
    )
    with pytest.raises(ConfigError, match=sentence), naming_refused_keys(section):
        Zero.model_validate(section["zero_optimization"])


def test_a_refused_combination_names_the_keys_that_were_added() -> None:
    with (
        pytest.raises(ConfigError, match=r"refuses the deepspeed section \(aio\.block_size\): no disk$"),
        naming_refused_keys({"aio": {"block_size": 1}}),
    ):
        raise AssertionError("no disk\nand more")


def test_without_a_section_of_the_users_it_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError), naming_refused_keys({}):
        raise AssertionError


def made(stage: int, **sections: Any) -> tuple[dict[str, Any], dict[str, str], bool]:
    """The JSON, the reasons by key, and whether vitscale's optimizer keeps the masters; as people write configs."""
    section = sections.pop("deepspeed", {})
    config = config_of({"engine": "deepspeed", "zero_stage": stage}, **sections)
    config = config.model_copy(update={"deepspeed": section})
    decisions = decide(config, world_size=1)
    reasons = {reason.key: reason.value for reason in deepspeed_reasons(config, decisions)}
    return deepspeed_settings(config, decisions), reasons, steps_masters(config, decisions)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeeds_timer_does_not_wait_for_the_device(stage: int) -> None:
    settings, reasons, _ = made(stage)
    assert settings["timers"] == {"throughput": {"enabled": False}}
    assert reasons["deepspeed.timers.throughput.enabled"] == "false"


@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_is_computed_that_nobody_needs(stage: int) -> None:
    settings, reasons, own = made(stage, precision=BF16)
    assert settings["bf16"] == {"enabled": True, "check_grad_overflow": False}
    assert settings["zero_optimization"] == {
        "stage": stage, "compute_grad_norm": False, "contiguous_gradients": False,
    }  # fmt: skip
    assert not own
    assert len(reasons) == 4


@pytest.mark.parametrize("stage", [1, 2])
def test_clipping_needs_the_norm(stage: int) -> None:
    settings, reasons, _ = made(stage, optim={"clip_grad": 1.0})
    assert "compute_grad_norm" not in settings["zero_optimization"]
    assert "deepspeed.zero_optimization.compute_grad_norm" not in reasons
    assert settings["gradient_clipping"] == 1.0


def test_stage_0_in_bf16_has_masters_of_ours_that_clip_themselves() -> None:
    settings, reasons, own = made(0, precision=BF16, optim={"clip_grad": 1.0})
    assert own
    assert "bf16" not in settings
    assert settings["gradient_clipping"] == 0.0
    assert settings["communication_data_type"] == "bf16"
    assert "deepspeed.bf16" in reasons


def test_stage_0_takes_deepspeeds_wrapper_where_its_check_is_asked_for() -> None:
    section = {"bf16": {"check_grad_overflow": True}}
    settings, reasons, own = made(0, precision=BF16, optim={"clip_grad": 1.0}, deepspeed=section)
    assert not own
    assert settings["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert settings["gradient_clipping"] == 1.0
    assert "deepspeed.bf16" not in reasons


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
def test_stage_0_in_other_precisions_is_deepspeeds(compute: str) -> None:
    settings, _, own = made(0, precision={"compute": compute}, optim={"clip_grad": 1.0})
    assert not own
    assert settings["gradient_clipping"] == 1.0


def test_fp16_keeps_its_overflow_check() -> None:
    settings, _, _ = made(1, precision={"compute": "fp16"})
    assert "check_grad_overflow" not in settings["fp16"]


def test_the_users_own_keys_win_and_are_not_explained_as_ours() -> None:
    section = {
        "timers": {"throughput": {"enabled": True}},
        "bf16": {"check_grad_overflow": True},
        "zero_optimization": {"contiguous_gradients": True, "compute_grad_norm": True},
    }
    settings, reasons, _ = made(2, precision=BF16, deepspeed=section)
    assert settings["timers"]["throughput"]["enabled"]
    assert settings["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert settings["zero_optimization"] == {"stage": 2, **section["zero_optimization"]}
    assert reasons == {}


@pytest.mark.parametrize("offload", [{"offload_optimizer": {"device": "cpu"}}, {"cpu_offload": True}])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloading_keeps_what_deepspeed_needs_for_it(stage: int, offload: dict[str, Any]) -> None:
    settings, _, _ = made(stage, deepspeed={"zero_optimization": offload})
    assert "contiguous_gradients" not in settings["zero_optimization"]
    assert "compute_grad_norm" not in settings["zero_optimization"]


@pytest.mark.parametrize("stage", [1, 2])
def test_overlapping_needs_the_buckets(stage: int) -> None:
    """Without them DeepSpeed waits for the device at each bucket."""
    settings, _, _ = made(stage, deepspeed={"zero_optimization": {"overlap_comm": True}})
    assert "contiguous_gradients" not in settings["zero_optimization"]


def test_blocks_are_leaves_under_stage_3() -> None:
    settings, reasons, _ = made(3)
    assert settings["zero_optimization"]["leaf_module"] == {"classes": ["timm.models.vision_transformer.Block"]}
    assert "deepspeed.zero_optimization.leaf_module.classes" in reasons


def test_no_leaves_beside_frozen_weights() -> None:
    """A leaf whose input needs no gradient is reduced before its weights have theirs."""
    settings, _, _ = made(3, model={"freeze": ["patch_embed", "pos_embed"]})
    assert "leaf_module" not in settings["zero_optimization"]


def test_the_key_of_leaves_names_timms_block() -> None:
    """As DeepSpeed compares it: by the class's full name."""
    from timm.models.vision_transformer import Block

    _, reasons, _ = made(3)
    assert reasons["deepspeed.zero_optimization.leaf_module.classes"] == f"['{Block.__module__}.{Block.__qualname__}']"
