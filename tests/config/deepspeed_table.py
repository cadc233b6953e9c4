"""Makes config/deepspeed_keys/<version>.json from the installed DeepSpeed: which keys its config reader knows.

    python tests/config/deepspeed_table.py [FILE]     prints or writes the table
    test_deepspeed_keys.py calls `table()` and compares.

How: DeepSpeedConfig is given a dict that notes every key that is looked up. Sections that DeepSpeed reads with a
pydantic model are read from that model's fields. A value of null in the table means: not a section, or one whose
inside is free; a dict holds the keys of a section, and no others are known there.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import deepspeed
from deepspeed.runtime import config as ds
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

_PROBE = "__vitscale_probe__"
_BASE = {"train_batch_size": 1}


class Noting(dict):
    """A dict that notes which keys were asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self) -> Any:
        return _Keys(self)


class _Keys:
    def __init__(self, owner: Noting) -> None:
        self.owner = owner

    def __contains__(self, key: object) -> bool:
        return key in self.owner

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self.owner)

    def __len__(self) -> int:
        return len(self.owner)


def table() -> dict[str, Any]:
    """The keys of the installed version."""
    top = Noting(_BASE)
    ds.DeepSpeedConfig(top)
    removed = sorted(ds._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    keys = {key: _section([key]) for key in sorted(top.asked - set(removed))}
    return {"deepspeed": deepspeed.__version__, "removed": removed, "keys": keys}


def _section(path: list[str]) -> dict[str, Any] | None:
    """Keys of the section at `path`, or None if it is a plain value."""
    inner = Noting({_PROBE: 0})
    nested: Any = inner
    for key in reversed(path[1:]):
        nested = Noting({key: nested, "enabled": True})
    models = _models_that_see(Noting({**_BASE, path[0]: nested}))
    if models:
        return _fields(models[-1])
    asked = sorted(inner.asked - {_PROBE})
    if not asked or len(path) > 3:
        return None
    return {key: _section([*path, key]) for key in asked}


def _models_that_see(config: Noting) -> list[type[DeepSpeedConfigModel]]:
    seen: list[type[DeepSpeedConfigModel]] = []
    original = DeepSpeedConfigModel.__init__

    def noting(self: DeepSpeedConfigModel, strict: bool = False, **data: Any) -> None:
        if _PROBE in data:
            seen.append(type(self))
        original(self, strict, **data)

    DeepSpeedConfigModel.__init__ = noting
    try:
        with contextlib.suppress(Exception):  # a probe is no valid section: what was asked for before counts
            ds.DeepSpeedConfig(config)
    finally:
        DeepSpeedConfigModel.__init__ = original
    return seen


def _fields(model: type[DeepSpeedConfigModel]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = [m for m in (field.annotation, *get_args(field.annotation)) if _is_model(m)]
        keys[field.alias or name] = keys[name] = _fields(inner[0]) if inner else None
    return dict(sorted(keys.items()))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, DeepSpeedConfigModel)


if __name__ == "__main__":
    text = json.dumps(table(), indent=1) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text)
