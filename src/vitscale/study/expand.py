"""From a StudyConfig to its cases, and to the order in which they run. Pure and torch-free.

In: a StudyConfig and the kind of device. Out: cases, each with a whole RunConfig, its world size and, if it cannot run,
the reason; and notes on combinations that were dropped (the same run twice, `single` on several processes). What a
machine has is study.machine's business.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from vitscale.config.axes import LAYOUT, changes
from vitscale.config.decide import Decisions, decide
from vitscale.config.load import build_config
from vitscale.config.overrides import Tree, merge
from vitscale.config.run import DataConfig, RunConfig
from vitscale.config.study import StudyConfig
from vitscale.errors import ConfigError, DeviceError
from vitscale.estimate.vit import check_resolution
from vitscale.results.record import Scalar

MAX_RUNS = 1_000  # more are likely a slip of the keyboard: --yes
_NAME_LENGTH = 60  # of folders; a hash of the whole name follows
_TRAIN_IMAGES = {"digits": 1_438, "cifar10": 50_000, "cifar100": 50_000}  # of the sources' own splits


@dataclass(frozen=True)
class Case:
    """One case. decisions is None where skip_reason says why it cannot run."""

    name: str
    axes: dict[str, Scalar]
    config: RunConfig
    world_size: int
    nodes: int
    decisions: Decisions | None
    skip_reason: str | None = None

    @property
    def devices_per_node(self) -> int:
        """Processes on each node."""
        return self.world_size // self.nodes

    def folder(self, repeat: int) -> str:
        """Name of the folder of one repeat: safe whatever the axes hold, and different for different names."""
        return f"{slug(self.name)}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}-r{repeat}"

    def config_of(self, repeat: int, *, vary_seed: bool) -> RunConfig:
        """The config of one repeat; where accuracy is looked at, each repeat has its own seed."""
        if not vary_seed or not repeat:
            return self.config
        train = self.config.train.model_copy(update={"seed": self.config.train.seed + repeat})
        return self.config.model_copy(update={"train": train})


@dataclass(frozen=True)
class Expansion:
    """All cases of a study, in the order of its axes, and sentences on what was dropped."""

    cases: tuple[Case, ...]
    notes: tuple[str, ...]


def expand(study: StudyConfig, device_type: str | None = None) -> Expansion:
    """Expand the axes into cases.

    A combination that the legal tables refuse is a case with a skip_reason. Raises ConfigError for a value that no
    config takes, and if no case is left or none can run.
    """
    cases: dict[str, Case] = {}
    dropped: list[str] = []
    for axes in _combinations(study):
        case = _case(study, axes, device_type)
        key = _sameness(case)
        if case.config.parallel.engine == "single" and case.world_size > 1:
            dropped.append(f"{case.name} is dropped: single runs one process")
        elif key in cases:
            if case.name != cases[key].name:
                dropped.append(f"{case.name} is dropped: it is the same run as {cases[key].name}")
        else:
            cases[key] = case
    found = tuple(cases.values())
    if not found:
        raise ConfigError("no case is left of this study: exclude, or axes.engine=[single], takes them all out")
    if all(case.skip_reason for case in found):
        raise ConfigError(f"no case of this study can run: {found[0].name}: {found[0].skip_reason}")
    return Expansion(found, tuple(dropped))


def slug(text: str) -> str:
    """A text as part of a folder's name: safe whatever it holds, but not different for different texts."""
    return re.sub(r"[^\w.=+-]+", "-", text, flags=re.ASCII).strip("-.")[:_NAME_LENGTH]


def train_images(data: DataConfig) -> int | None:
    """Training images of a source, train_limit left out; None where its files must be looked at."""
    if data.val_fraction is not None:  # that many of each class: the labels decide
        return None
    return data.synthetic_size if data.source == "synthetic" else _TRAIN_IMAGES.get(data.source)


def check_count(study: StudyConfig, *, yes: bool) -> None:
    """Refuse a study of over MAX_RUNS runs, unless it is wanted."""
    runs = math.prod(len(values) for values in study.axes.values()) * study.repeats
    if runs > MAX_RUNS and not yes:
        sizes = " x ".join(str(len(values)) for values in study.axes.values())
        raise ConfigError(
            f"this study has up to {runs:,} runs (axes {sizes}, {study.repeats} repeats), over {MAX_RUNS:,}; take "
            "values out, lower repeats, or give --yes"
        )


def running_order(cases: int, repeats: int, seed: int) -> list[tuple[int, int]]:
    """(case, repeat) in running order: every round holds each case once, shuffled anew.

    A drift of the machine (heat, other people's work) then falls on all cases alike, and a study that is stopped
    has the same number of repeats of each, to one.
    """
    order = []
    for repeat in range(repeats):
        indices = list(range(cases))
        random.Random(f"{seed}/{repeat}").shuffle(indices)
        order += [(index, repeat) for index in indices]
    return order


def config_hash(config: RunConfig) -> str:
    """SHA-256 of a config, its seed left out: repeats of a case have the same one."""
    tree = config.model_dump(mode="json")
    tree["train"].pop("seed")
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def _combinations(study: StudyConfig) -> Iterator[dict[str, Scalar]]:
    for values in product(*study.axes.values()):
        axes = dict(zip(study.axes, values, strict=True))
        if not any(_matches(axes, entry) for entry in study.exclude):
            yield axes


def _matches(axes: dict[str, Scalar], entry: dict[str, Any]) -> bool:
    return all(axes[name] in (value if isinstance(value, list) else [value]) for name, value in entry.items())


def _case(study: StudyConfig, axes: dict[str, Scalar], device_type: str | None) -> Case:
    world_size, nodes = _layout(axes)
    tree: Tree = study.base
    for name, value in axes.items():
        tree = merge(tree, changes(name, value))
    axes, tree = _without_strangers(axes, tree, world_size)
    name = " ".join(f"{key}={_shown(value)}" for key, value in axes.items()) or study.name
    config = _config(study, _batch(study, axes, tree), name, world_size)
    _check_share(study, config.data, name, world_size)
    case = Case(name, axes, config, world_size, nodes, None)
    try:
        check_resolution(config.model)
        return replace(case, decisions=decide(config, world_size=world_size, device_type=device_type))
    except (ConfigError, DeviceError) as error:
        return replace(case, skip_reason=str(error))


def _config(study: StudyConfig, tree: Tree, name: str, world_size: int) -> RunConfig:
    try:
        return build_config(_measured(study, tree, world_size))
    except ConfigError as error:
        raise ConfigError(f"{_at_fault(study, name, world_size)}: {error}") from None


def _check_share(study: StudyConfig, data: DataConfig, name: str, world_size: int) -> None:
    """Weak scaling: every device must get its images, or the work per device is not what is kept."""
    asked, there = (study.images_per_device or 0) * world_size, train_images(data)
    if there is not None and asked > there:
        raise ConfigError(
            f"case {name}: images_per_device={study.images_per_device} x world_size={world_size} asks for {asked:,} "
            f"training images, and {data.source} has {there:,}; lower images_per_device, or leave that world size out"
        )


def _at_fault(study: StudyConfig, name: str, world_size: int) -> str:
    """What base has wrong, it has wrong without the axes."""
    try:
        build_config(_measured(study, {**study.base, "train": study.base.get("train") or {}}, world_size))
    except ConfigError:
        return "base"
    return f"case {name}"


def _layout(axes: dict[str, Scalar]) -> tuple[int, int]:
    """(world size, nodes): world_size = nodes x devices_per_node, of which any may be an axis."""
    size, nodes, each = (axes.get(name) for name in LAYOUT)
    assert size is None or isinstance(size, int)
    assert nodes is None or isinstance(nodes, int)
    assert each is None or isinstance(each, int)
    if size is None:
        return (nodes or 1) * (each or 1), nodes or 1
    if nodes is None:
        nodes = size // each if each else 1
    if (size != nodes * each) if each else size % nodes:
        raise ConfigError(
            f"axes.world_size={size} does not divide over nodes={nodes} with devices_per_node={each or 'any'}; "
            "give two of the three axes, or exclude this combination"
        )
    return size, nodes


def _without_strangers(axes: dict[str, Scalar], tree: Tree, world_size: int) -> tuple[dict[str, Scalar], Tree]:
    """Take DeepSpeed's own settings out of cases of other engines, so that one study can hold both."""
    parallel = tree.get("parallel") or {}
    engine = parallel.get("engine") or "auto"
    if engine == "deepspeed" or (engine == "auto" and (parallel.get("zero_stage") or tree.get("deepspeed"))):
        return axes, tree
    kept = {name: value for name, value in axes.items() if name != "zero_stage" and not name.startswith("deepspeed.")}
    return kept, {**tree, "parallel": {**parallel, "zero_stage": 0}, "deepspeed": {}}


def _batch(study: StudyConfig, axes: dict[str, Scalar], tree: Tree) -> Tree:
    """The batch keys that the mode keeps; the third of the identity follows in config.batch."""
    train = dict(tree.get("train") or {})
    if study.mode == "strong" and study.fixed == "global":
        if train.get("global_batch_size") is None:
            raise ConfigError("fixed=global needs base.train.global_batch_size, the batch size that is kept")
        if "micro_batch_size" not in axes:
            train["micro_batch_size"] = None
        elif "grad_accum_steps" not in axes:
            train["grad_accum_steps"] = None
    elif study.mode != "grid":
        if train.get("micro_batch_size") is None:
            kept = "fixed=per_device" if study.mode == "strong" else "mode=weak"
            raise ConfigError(f"{kept} needs base.train.micro_batch_size, the batch size of each device that is kept")
        train["global_batch_size"] = None
    return {**tree, "train": train}


def _measured(study: StudyConfig, tree: Tree, world_size: int) -> Tree:
    """The length and what belongs to it: no checkpoints, evaluations only where accuracy is looked at."""
    measure, train = study.measure, dict(tree["train"])
    train |= {"max_updates": None, "epochs": measure.epochs, "target_top1": measure.target_top1}
    evaluation = dict(tree.get("eval") or {})
    if measure.updates is not None:
        train["max_updates"] = measure.warmup_updates + measure.updates + measure.trace_updates
        evaluation |= {"every_epochs": None, "every_updates": None}
    else:  # the end of the last epoch is always evaluated
        evaluation["every_epochs"] = math.gcd(evaluation.get("every_epochs") or 1, measure.epochs or 1)
    data = dict(tree.get("data") or {})
    if study.images_per_device is not None:
        data["train_limit"] = study.images_per_device * world_size
    checkpoint = {"every_updates": None, "every_epochs": None, "keep_best": False}
    log = {**(tree.get("log") or {}), "tensorboard": False, "wandb": False, "mlflow": False}
    over = {"train": train, "eval": evaluation, "data": data, "checkpoint": checkpoint, "log": log}
    return {**tree, **over}


def _sameness(case: Case) -> str:
    """Equal for two combinations that run the same thing."""
    engine = case.decisions and (case.decisions.engine, case.decisions.zero_stage, case.decisions.batch)
    tree = case.config.model_dump(mode="json")
    if case.decisions is not None:  # `auto` and its choice, a triple given whole and in part: the same run
        tree["parallel"], tree["precision"] = None, case.decisions.precision
        tree["train"] |= {"micro_batch_size": None, "grad_accum_steps": None, "global_batch_size": None}
    return json.dumps([tree, engine, case.world_size, case.nodes], sort_keys=True)


def _shown(value: Scalar) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(value)
