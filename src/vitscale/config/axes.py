"""The axes of a study: what their names mean, and how a value of one changes a run's config. Torch-free.

An axis is named by the last part of a config key where that is unique, by the whole dotted key otherwise. A few are
no single key: world_size, nodes and devices_per_node say where a case runs, `engine` takes deepspeed:2 for engine and
ZeRO stage, `precision` a whole triple. In: names and values as people write them. Out: one canonical name per axis,
and trees to lay over a config.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

from vitscale.config.messages import dotted_keys, nearest
from vitscale.config.overrides import Tree
from vitscale.config.run import RunConfig
from vitscale.errors import ConfigError

Scalar = bool | int | float | str | None

LAYOUT = ("world_size", "nodes", "devices_per_node")
PRECISION = "precision"
# Short names of keys whose last part is not unique.
_SHORT = {"model": "model.name", "optimizer": "optim.name", "micro_batch_size": "train.micro_batch_size"}
_LENGTH = ("train.epochs", "train.max_updates", "train.target_top1")
_OPEN = ("deepspeed.", "model.kwargs.")  # sections whose keys belong to others
_ENGINES = ("auto", "single", "ddp", "fsdp2", "deepspeed")


def axis_name(name: str) -> str:
    """The canonical name of an axis, given by either of its names; ConfigError with the nearest one for a third."""
    by_name = _axes()
    if name in (*LAYOUT, PRECISION) or name in by_name:
        return name
    for short, key in by_name.items():
        if name == key:
            return short
    if name in _LENGTH or name in [key.rpartition(".")[2] for key in _LENGTH]:
        raise ConfigError(
            f"axes.{name}: the length of a study's runs is no axis; set measure.updates or measure.epochs"
        )
    if name.startswith(_OPEN):
        return name
    same_end = [key for key in by_name.values() if key.rpartition(".")[2] == name]
    if same_end:
        raise ConfigError(f"axes.{name} is not one key: write {' or '.join(f'axes.{key}' for key in same_end)}")
    known = [*LAYOUT, PRECISION, *by_name, *by_name.values()]
    raise ConfigError(
        f"unknown axis {name}{nearest(name, known)}; an axis is world_size, nodes, devices_per_node, precision, or a "
        "key of the config such as micro_batch_size or engine"
    )


def axis_key(name: str) -> str | None:
    """The dotted key behind a canonical axis name; None for those that are no single key."""
    return None if name in (*LAYOUT, PRECISION) else _axes().get(name, name)


def changes(name: str, value: Scalar) -> Tree:
    """The tree that lays one axis value over a config; empty for the axes that say where a case runs."""
    if name in LAYOUT:
        return {}
    if name == PRECISION:
        return {"precision": _precision(value)}
    if name == "engine":
        return {"parallel": _engine(value)}
    key = axis_key(name)
    assert key is not None
    tree: Tree = {}
    below = tree
    *sections, last = key.split(".")
    for section in sections:
        below = below.setdefault(section, {})
    below[last] = value
    return tree


@cache
def _axes() -> dict[str, str]:
    """Canonical name -> dotted key, of every key that can be an axis."""
    keys = [key for key in dotted_keys(RunConfig) if key not in _LENGTH and key != "deepspeed"]
    ends = Counter(key.rpartition(".")[2] for key in keys)
    short = {key: name for name, key in _SHORT.items()}
    return {short.get(key, _end(key) if ends[_end(key)] == 1 else key): key for key in keys}


def _end(key: str) -> str:
    return key.rpartition(".")[2]


def _engine(value: Scalar) -> Tree:
    text = str(value)
    engine, colon, stage = text.partition(":")
    if not colon:
        return {"engine": text}
    if engine != "deepspeed" or stage not in ("0", "1", "2", "3"):
        known = [*_ENGINES, *(f"deepspeed:{number}" for number in range(4))]
        raise ConfigError(f"axes.engine: {text} is not an engine{nearest(text, known)}; choose from {', '.join(known)}")
    return {"engine": engine, "zero_stage": int(stage)}


def _precision(value: Scalar) -> Tree:
    """`bf16/fp32/fp32`, or `bf16` for that compute with the rest left to the defaults."""
    parts = str(value).split("/")
    if len(parts) not in (1, 3):
        raise ConfigError(
            f"axes.precision: {value} is not compute/params/reduce, such as bf16/fp32/fp32, nor compute alone"
        )
    names = ("compute", "params", "reduce")
    return dict(zip(names, [*parts, None, None][:3], strict=True))
