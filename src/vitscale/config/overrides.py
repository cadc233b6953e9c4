"""YAML text and dotted overrides -> plain trees of dicts, lists and scalars.

Nothing here knows RunConfig: a key that does not exist is found when the tree is validated (config.load).
In: YAML text, `section.key=value` strings. Out: dicts. Errors: ConfigError, one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from vitscale.errors import ConfigError

Tree = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads 3e-4 as a number, as YAML 1.2 does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str):
                raise ConfigError(f"line {node.start_mark.line + 1}: the key {key!r} must be text")
            if keys.count(key) > 1:
                raise ConfigError(f"line {node.start_mark.line + 1}: the key {key} is given twice")
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where a number with an exponent needs a dot and a sign: without this, 3e-4 is text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; `where` (a file's name, an override) opens the sentence of an error."""
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "unreadable characters"
        raise ConfigError(f"{where}{line}: not valid YAML ({problem})") from None


def parse_override(text: str) -> tuple[list[str], Any]:
    """`optim.lr=3e-4` -> (["optim", "lr"], 0.0003)."""
    key, equals, value = text.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not all(re.fullmatch(r"[A-Za-z_]\w*", part) for part in parts):
        raise ConfigError(f"{text!r} is not an override; write section.key=value, such as optim.lr=3e-4")
    if not value.strip():
        raise ConfigError(f"{key} is given no value; write {key}=VALUE, or leave it out")
    return parts, parse_yaml(value, f"override {key}")


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> Tree:
    """Return a copy of `tree` with the overrides applied in order: a later one wins."""
    for text in overrides:
        parts, value = parse_override(text)
        tree = _set(tree, parts, value, "")
    return tree


def merge(under: Tree, over: Tree) -> Tree:
    """Return `under` with the keys of `over` laid on it, section by section."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _set(tree: Tree, parts: list[str], value: Any, prefix: str) -> Tree:
    head, *rest = parts
    if not rest:
        return {**tree, head: value}
    below = tree.get(head)
    if below is not None and not isinstance(below, dict):
        raise ConfigError(f"{prefix}{head} is a value, not a section, so {prefix}{'.'.join(parts)} cannot be set")
    return {**tree, head: _set(below or {}, rest, value, f"{prefix}{head}.")}
