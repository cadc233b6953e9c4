"""Recipes, YAML files and overrides -> RunConfig, and back to YAML.

In: a packaged recipe's name or a path, dotted overrides, a file of DeepSpeed's keys. Out: a validated RunConfig.
Order, later wins: the file, --ds-config, overrides. Everything wrong is one ConfigError sentence that names the
dotted key. What depends on data, device or number of processes is checked elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vitscale.config.deepspeed_keys import check_deepspeed_section
from vitscale.config.messages import describe, nearest, tidy
from vitscale.config.overrides import Tree, apply_overrides, merge, parse_yaml
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError

_RECIPES = files("vitscale.config") / "recipes"
_STUDIES = files("vitscale.config") / "studies"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a packaged recipe says of itself; not part of RunConfig."""

    name: str
    kind: str
    hardware: str
    time: str
    expected: str
    summary: str


def recipes() -> list[Recipe]:
    """All packaged recipes, by name."""
    names = sorted(entry.name.removesuffix(".yaml") for entry in _RECIPES.iterdir() if entry.name.endswith(".yaml"))
    return [read_recipe_section(read_packaged(_RECIPES, name), name, "recipe") for name in names]


def load_config(source: str | Path, overrides: Sequence[str] = (), ds_config: Path | None = None) -> RunConfig:
    """Load a recipe (by name) or a YAML file, lay a DeepSpeed file and `section.key=value` overrides on it.

    >>> load_config("digits", ["optim.lr=1e-3"]).optim.lr
    0.001
    """
    tree = read_tree(source)
    tree.pop("recipe", None)
    if ds_config is not None:
        tree = merge(tree, {"deepspeed": _read_json(ds_config)})
    return build_config(apply_overrides(tree, overrides))


def build_config(tree: Tree) -> RunConfig:
    """Validate a plain tree (as YAML gives it) into a RunConfig; ConfigError names the key that is wrong."""
    if tree.get("train") is None:
        tree = {**tree, "train": {}}  # so that the error is about what is needed, not about a missing section
    try:
        config = RunConfig.model_validate(tidy(tree, RunConfig))
    except ValidationError as error:
        raise ConfigError(describe(error, RunConfig)) from None
    if config.deepspeed:
        check_deepspeed_section(config.deepspeed)
        _check_linear(config)
    return config


def _check_linear(config: RunConfig) -> None:
    """DeepSpeed's own linear function under torch.compile on a GPU loses gradients without a word (0.19.8)."""
    zero = config.deepspeed.get("zero_optimization", {})
    if config.performance.compile is True and zero.get("memory_efficient_linear"):
        raise ConfigError(
            "deepspeed.zero_optimization.memory_efficient_linear=true loses gradients with performance.compile=true; "
            "remove one of the two"
        )


def dump_config(config: RunConfig) -> str:
    """Write a RunConfig as YAML that `load_config` reads back to an equal one."""
    return str(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=110))


def read_tree(source: str | Path) -> Tree:
    """The raw tree of a recipe (by name) or of a YAML file."""
    if isinstance(source, str) and "/" not in source and not source.endswith((".yaml", ".yml")):
        return _read_recipe(source)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist; `vitscale recipes` lists the packaged ones") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config file {path} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read ({_reason(error)})") from None
    return _mapping(parse_yaml(text, str(path)), f"config file {path}")


def _read_recipe(name: str) -> Tree:
    if not (_RECIPES / f"{name}.yaml").is_file():
        if (_STUDIES / f"{name}.yaml").is_file():
            raise ConfigError(f"{name} is a study, and no recipe: vitscale study {name}")
        known = [recipe.name for recipe in recipes()]
        raise ConfigError(
            f"there is no recipe {name!r}{nearest(name, known)}; `vitscale recipes` lists them, and a file of your own "
            "is given by a path that ends in .yaml"
        )
    return read_packaged(_RECIPES, name)


def read_packaged(folder: Traversable, name: str) -> Tree:
    """The raw tree of a packaged file."""
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
    return _mapping(parse_yaml(text, f"recipe {name}"), f"recipe {name}")


def read_recipe_section(tree: Tree, name: str, what: str) -> Recipe:
    """What a packaged recipe or study says of itself."""
    section = tree.get("recipe")
    wanted = {field.name for field in fields(Recipe)} - {"name"}
    assert isinstance(section, dict), f"{what} {name} has no recipe section"
    assert set(section) == wanted, f"{what} {name}: its recipe section needs {wanted}"
    return Recipe(name=name, **section)


def _read_json(path: Path) -> Tree:
    try:
        section = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except FileNotFoundError:
        raise ConfigError(f"--ds-config {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ds-config {path} is not readable JSON ({_reason(error)})") from None
    except ConfigError as error:
        raise ConfigError(f"--ds-config {path}: {error}") from None
    return _mapping(section, f"--ds-config {path}")


def _unique(pairs: list[tuple[str, Any]]) -> Tree:
    tree: Tree = {}
    for key, value in pairs:
        if key in tree:
            raise ConfigError(f"the key {key} is given twice")
        tree[key] = value
    return tree


def _mapping(tree: Any, what: str) -> Tree:
    if not isinstance(tree, dict):
        raise ConfigError(f"{what} must hold sections and keys, not {'nothing' if tree is None else repr(tree)[:40]}")
    return tree


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
