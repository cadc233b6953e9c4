"""A value that DeepSpeed refuses is named by its dotted key, as the user wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from vitscale.engine.deepspeed.settings import naming_refused_keys
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
