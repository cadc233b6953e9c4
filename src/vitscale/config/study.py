"""StudyConfig: what a study runs, frozen and typed; and the studies that are packaged.

In: a packaged study's name or a YAML file, `axes.key=[a,b]`, `base.section.key=value` and other overrides. Out: a
StudyConfig whose base is whole (recipe and sections merged) and whose axes have canonical names. Torch-free. What the
cases are is study.expand's business.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from vitscale.config.axes import Scalar, axis_name
from vitscale.config.load import Recipe, read_packaged, read_recipe_section, read_tree, recipes
from vitscale.config.messages import describe, nearest, tidy
from vitscale.config.overrides import Tree, apply_overrides, merge
from vitscale.config.run import NonNegative, Positive, RunConfig, Section
from vitscale.errors import ConfigError

_STUDIES = files("vitscale.config") / "studies"
MIN_TRACE = 10
MAX_NAME = 100


class MeasureConfig(Section):
    """How long each case runs: exactly one of updates, epochs and target_top1 (which needs epochs as its limit)."""

    warmup_updates: NonNegative = Field(10, description="kept but not counted: compilation, autotuning, caches")
    updates: Positive | None = Field(None, description="counted updates of each case")
    trace_updates: NonNegative = Field(
        MIN_TRACE, description="traced updates for the attribution of time, beside the counted ones; 0 or at least 10"
    )
    keep_traces: bool = Field(False, description="keep each rank's trace beside its log, for a trace viewer")
    epochs: Positive | None = Field(None, description="whole epochs of each case, with evaluations")
    target_top1: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="train until an evaluation reaches this top-1, for `epochs` epochs at most"
    )

    @model_validator(mode="after")
    def _one_length(self) -> MeasureConfig:
        if self.updates is None and self.epochs is None:
            raise ValueError("measure.updates or measure.epochs must be given")
        if self.updates is not None and (self.epochs is not None or self.target_top1 is not None):
            other = "measure.epochs" if self.epochs is not None else "measure.target_top1"
            raise ValueError(f"measure.updates and {other} exclude each other; clear one with =none")
        if 0 < self.trace_updates < MIN_TRACE:
            raise ValueError(f"measure.trace_updates={self.trace_updates} must be 0 or at least {MIN_TRACE}")
        return self


class StudyConfig(Section):
    """A base run, axes over which it varies, and how it is measured."""

    name: str = Field("study", description="of the study; a file's own name if it gives none")
    base: dict[str, Any] = Field({}, description="a RunConfig; `recipe: NAME` or a path, and sections laid over it")
    axes: dict[str, tuple[Scalar, ...]] = Field({}, description="axis name -> its values")
    mode: Literal["grid", "strong", "weak"] = Field(
        "grid", description="what is kept as the world size grows; grid: what base says"
    )
    fixed: Literal["global", "per_device"] | None = Field(None, description="of strong: which batch size is kept")
    images_per_device: Positive | None = Field(
        None, description="of weak: n devices get the first n times this many training images"
    )
    measure: MeasureConfig
    repeats: Positive = Field(3, description="of every case, each in a fresh process group")
    order_seed: NonNegative = Field(0, description="of the order: every round of repeats is shuffled anew")
    timeout_s: Annotated[float, Field(gt=0)] = Field(1800.0, description="of one case, its start included")
    memory_limit_gib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="per process: of GPU memory, or on the CPU of memory beyond what Python and torch have loaded"
    )
    exclude: tuple[dict[str, Any], ...] = Field((), description="combinations left out, as some of their axis values")

    @model_validator(mode="after")
    def _name_is_plain(self) -> StudyConfig:
        if not re.fullmatch(rf"[\w. -]{{1,{MAX_NAME}}}", self.name):
            shown = self.name if len(self.name) <= 40 else f"{self.name[:37]}..."
            raise ValueError(
                f"name={shown!r} must be 1 to {MAX_NAME} letters, digits, spaces and ._-, since a folder is named by it"
            )
        return self

    @model_validator(mode="after")
    def _mode_fits(self) -> StudyConfig:
        if self.mode == "strong" and self.fixed is None:
            raise ValueError("mode=strong needs fixed=global or fixed=per_device: say which batch size is kept")
        if self.mode != "strong" and self.fixed is not None:
            raise ValueError(f"fixed={self.fixed} has a meaning with mode=strong only; clear it with fixed=none")
        if self.mode != "weak" and self.images_per_device is not None:
            raise ValueError("images_per_device has a meaning with mode=weak only")
        if self.mode == "weak" and self.measure.updates is None and self.images_per_device is None:
            raise ValueError("mode=weak over whole epochs needs images_per_device: work per device is what is kept")
        if self.mode != "grid" and not {"world_size", "nodes", "devices_per_node"} & set(self.axes):
            raise ValueError(f"mode={self.mode} compares world sizes; give axes.world_size=[1,2]")
        return self

    def fingerprint(self) -> str:
        """SHA-256 of all that decides what one case measures: two studies with the same one can share a folder."""
        return hashlib.sha256(json.dumps(self.essence(), sort_keys=True).encode()).hexdigest()

    def essence(self) -> Tree:
        """What may not change in a study's folder. Axes, repeats, order, time-outs and exclusions may."""
        tree = self.model_dump(mode="json")
        return {key: tree[key] for key in ("base", "mode", "fixed", "images_per_device", "measure", "memory_limit_gib")}


def studies() -> list[Recipe]:
    """All packaged studies, by name, with what each says of itself."""
    return [read_recipe_section(read_packaged(_STUDIES, name), name, "study") for name in _names()]


def load_study(source: str | Path, overrides: Sequence[str] = (), *, quick: bool = False) -> StudyConfig:
    """Load a packaged study (by name) or a YAML file; quick lays its `quick` part over it, then come the overrides.

    >>> load_study("strong-scaling", ["axes.world_size=[1,2]"]).axes["world_size"]
    (1, 2)
    """
    tree, folder = _read(source)
    tree.pop("recipe", None)
    small = tree.pop("quick", None)
    layers = [_flat_axes(tree).get("axes") or {}]  # whose values exclude may name, whatever is laid over them
    if quick:
        if small is None:
            raise ConfigError(f"study {source} has no `quick:` part, so --quick has no effect on it; leave it out")
        tree = _lay(_flat_axes(tree), _flat_axes(small) if isinstance(small, dict) else small)
    tree = _flat_axes(tree)
    layers.append(tree.get("axes") or {})
    _check_spelling("axes", [_key(text).removeprefix("axes.") for text in overrides if _key(text).startswith("axes.")])
    tree = _named(apply_overrides(tree, overrides), layers)
    tree = {"name": _name_of(source), **tree, "base": _base(tree.get("base"), folder)}
    if tree.get("measure") in (None, "none"):
        raise ConfigError("measure is missing; give measure.updates or measure.epochs")
    try:
        return StudyConfig.model_validate(tidy(tree, StudyConfig))
    except ValidationError as error:
        raise ConfigError(describe(error, StudyConfig)) from None


def dump_study(study: StudyConfig) -> str:
    """Write a StudyConfig as YAML that `load_study` reads back to an equal one."""
    tree = study.model_dump(mode="json")
    return str(yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=110))


def _names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _STUDIES.iterdir() if entry.name.endswith(".yaml"))


def _read(source: str | Path) -> tuple[Tree, Path]:
    """The tree, and the folder that paths in it may be relative to."""
    if isinstance(source, str) and "/" not in source and not source.endswith((".yaml", ".yml")):
        if source in [recipe.name for recipe in recipes()]:
            raise ConfigError(f"{source} is a training recipe, and no study: vitscale train {source}")
        if source not in _names():
            raise ConfigError(
                f"there is no study {source!r}{nearest(source, _names())}; `vitscale recipes` lists them, and a file "
                "of your own is given by a path that ends in .yaml"
            )
        return read_packaged(_STUDIES, source), Path()
    return read_tree(source), Path(source).parent


def _lay(tree: Tree, over: Any) -> Tree:
    """Lay the quick part over a study: section by section, but a base of another recipe replaces the base."""
    if not isinstance(over, dict):
        raise ConfigError("quick is a section and holds the keys of a study")
    merged = merge(tree, over)
    base = over.get("base")
    return {**merged, "base": base} if isinstance(base, dict) and "recipe" in base else merged


def _base(base: Any, folder: Path) -> Tree:
    """The recipe that base names, with base's own sections laid over it."""
    if base is None:
        return {}
    if not isinstance(base, dict):
        raise ConfigError("base is a section: `recipe: NAME`, and sections of a run's config")
    sections = dict(base)
    recipe = sections.pop("recipe", None)
    if recipe is None:
        return tidy(sections, RunConfig)
    near = folder / str(recipe)
    under = read_tree(near if str(recipe).endswith((".yaml", ".yml")) and near.is_file() else str(recipe))
    under.pop("recipe", None)
    return tidy(merge(under, sections), RunConfig)


def _flat_axes(tree: Tree, *, strict: bool = True) -> Tree:
    """Axes by canonical name, so that an override of either name meets the study's own axis."""
    axes = tree.get("axes")
    if axes is None:
        return tree
    if not isinstance(axes, dict):
        raise ConfigError("axes is a section: an axis on each line, with the list of its values")
    pairs = _flat(axes)
    if strict:
        _check_spelling("axes", [name for name, _ in pairs])
    return {**tree, "axes": {axis_name(name): values for name, values in pairs}}


def _flat(axes: Tree, prefix: str = "") -> list[tuple[str, Any]]:
    """`{train: {seed: [0, 1]}}`, as dotted overrides make it, as [("train.seed", [0, 1])]."""
    pairs: list[tuple[str, Any]] = []
    for name, value in axes.items():
        pairs += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return pairs


def _named(tree: Tree, layers: list[Tree]) -> Tree:
    """Flat axes with canonical names and lists of values; `none` takes an axis out, a lone value is a list of one."""
    tree = _flat_axes(tree, strict=False)  # an override of one name meets the study's own axis of the other
    axes = {
        name: _values(name, values) for name, values in (tree.get("axes") or {}).items() if values not in (None, "none")
    }
    exclude = tree.get("exclude") or []
    if not isinstance(exclude, list) or not all(isinstance(entry, dict) for entry in exclude):
        raise ConfigError("exclude is a list of combinations, such as [{engine: fsdp2, micro_batch_size: 16}]")
    return {**tree, "axes": axes, "exclude": [kept for entry in exclude if (kept := _excluded(entry, axes, layers))]}


def _excluded(entry: Tree, axes: dict[str, list[Scalar]], layers: list[Tree]) -> Tree | None:
    """An entry of exclude by canonical names; None if it meets only values that the study had before the overrides."""
    pairs = _flat(entry)
    if not pairs:
        raise ConfigError(
            "exclude holds an empty combination, which would leave no case; name axes in it, or remove it"
        )
    _check_spelling("exclude", [name for name, _ in pairs])
    named = {axis_name(name): value for name, value in pairs}
    for name, value in named.items():
        if name not in axes:
            raise ConfigError(f"exclude names {name}, which is no axis of this study{nearest(name, axes)}")
        values = [*axes[name], *(one for layer in layers for one in _listed(layer.get(name, [])))]
        for one in _listed(value):
            if one not in values:
                hint = nearest(str(one), map(str, axes[name]))
                raise ConfigError(f"exclude: {name}={str(one)[:60]} is no value of that axis{hint}")
    named = {
        name: [one for one in value if one in axes[name]] if isinstance(value, list) else value
        for name, value in named.items()
    }
    met = all(value if isinstance(value, list) else value in axes[name] for name, value in named.items())
    return named if met else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_spelling(section: str, names: Iterable[str]) -> None:
    """Refuse an axis that is there under both its names: which of the two counts would be chance."""
    spelled: dict[str, str] = {}
    for name in names:
        other = spelled.setdefault(axis_name(name), name)
        if other != name:
            raise ConfigError(f"{section}: {axis_name(name)} is given twice ({other}, {name})")


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _name_of(source: str | Path) -> str:
    """The name of a study that gives none: its file's, as far as a name may hold it."""
    return re.sub(r"[^\w. -]+", "-", Path(source).stem)[:MAX_NAME] or "study"


def _values(name: str, values: Any) -> list[Scalar]:
    listed = _listed(values)
    if not listed:
        raise ConfigError(
            f"axes.{name}=[] holds no value, so the study has no case; give one, or none to drop the axis"
        )
    for value in listed:
        if not isinstance(value, Scalar):
            raise ConfigError(f"axes.{name}: {str(value)[:60]} is not a single value (a number, a word, true or false)")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"axes.{name}: {value} is not a finite number")
    if name in ("world_size", "nodes", "devices_per_node"):
        _check_counts(name, listed)
    if len({repr(value) for value in listed}) < len(listed):
        twice = next(value for value in listed if listed.count(value) > 1)
        raise ConfigError(f"axes.{name} holds {twice} twice")
    return listed


def _check_counts(name: str, values: list[Scalar]) -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"axes.{name}: {value} must be a whole number > 0")
