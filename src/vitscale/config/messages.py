"""From pydantic's errors to one sentence for people; and what people write to what pydantic takes.

`tidy` runs before validation (none, ~, a lone string for a list), `describe` after it failed. Knows any Section.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from vitscale.errors import ConfigError

# Names that other tools use, too far from ours for difflib.
_OTHER_NAMES = {
    "learning_rate": "optim.lr",
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.grad_accum_steps",
    "max_grad_norm": "optim.clip_grad",
    "gradient_clipping": "optim.clip_grad",
    "grad_clip": "optim.clip_grad",
    "stage": "parallel.zero_stage",
    "dtype": "precision.compute",
    "fp16": "precision.compute",
    "bf16": "precision.compute",
    "max_steps": "train.max_updates",
    "num_workers": "data.workers",
    "resolution": "model.img_size",
    "image_size": "model.img_size",
    "optimizer": "optim.name",
    "scheduler": "optim.schedule",
    "warmup_steps": "optim.warmup_updates",
    "gradient_checkpointing": "performance.checkpointing",
    "grad_checkpointing": "performance.checkpointing",
}


_TYPE_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    type(None): "none",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` as the tail of a clause, or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def tidy(tree: dict[str, Any], model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return `tree` as pydantic wants it: `none` cleared where a key may be None, ~ expanded, lone strings in lists."""
    tidied = {}
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            tidied[key] = value
        elif (section := section_of(field.annotation)) and isinstance(value, dict):
            tidied[key] = tidy(value, section, f"{prefix}{key}.")
        elif (section or get_origin(field.annotation) is dict) and value in (None, "none"):
            tidied[key] = {}  # a section with nothing under it
        else:
            tidied[key] = _tidy_value(value, _leaves(field.annotation), f"{prefix}{key}")
    return tidied


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The Section class of a field, or None if it holds a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence for the worst of a validation's problems: unknown keys first."""
    problems = error.errors(include_url=False)
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    keys = {".".join(_path(problem["loc"], model)) for problem in problems}  # a union reports one problem per member
    more = len(keys) - 1
    return _sentence(first, model) + (f" ({more} more problem{'s' if more > 1 else ''} after that)" if more else "")


def _sentence(problem: ErrorDetails, model: type[BaseModel]) -> str:
    path = _path(problem["loc"], model)
    key, value = ".".join(path), problem["input"]
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key}{_nearest_key(path, model)}"
    if problem["type"] == "value_error":  # our own validators name their keys
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing" and isinstance(problem["loc"][-1], str):  # else an item of a list that is short
        return f"{key} is missing"
    if problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key} is a section and holds keys, not {value!r}"
    expected, words = type_text(field_of(path, model)), _words(field_of(path, model).annotation)
    return f"{key}={_shown(problem['input'])} must be {expected}{nearest(str(value), words)}"


def _path(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The dotted key of an error's location: pydantic adds names of union members after it, which mean nothing here."""
    path: list[str] = []
    current: type[BaseModel] | None = model
    for part in loc:
        if current is None:
            break
        path.append(str(part))
        field = current.model_fields.get(str(part))
        current = section_of(field.annotation) if field else None
    return path


def _nearest_key(path: list[str], model: type[BaseModel]) -> str:
    *sections, name = path
    owner = model
    for part in sections:
        owner = section_of(owner.model_fields[part].annotation) or owner
    prefix = "".join(f"{part}." for part in sections)
    if here := difflib.get_close_matches(name, list(owner.model_fields), n=1, cutoff=0.6):
        return f" (did you mean {prefix}{here[0]}?)"
    if name in _OTHER_NAMES:
        return f" (did you mean {_OTHER_NAMES[name]}?)"
    leaves = {key.rpartition(".")[2]: key for key in dotted_keys(model)}
    if there := difflib.get_close_matches(name, list(leaves), n=1, cutoff=0.75):
        return f" (did you mean {leaves[there[0]]}?)"
    return f"; the keys here are {', '.join(owner.model_fields)}"


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a config that holds a value, in order."""
    keys = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        keys += dotted_keys(section, f"{prefix}{name}.") if section else [f"{prefix}{name}"]
    return keys


def type_text(field: FieldInfo) -> str:
    """What a key takes, in words: `a whole number > 0, or none`."""
    limits = _limits(field.metadata)
    parts = [_member_text(member, limits) for member in _members(field.annotation)]
    return ", or ".join(parts)


def field_of(path: list[str], model: type[BaseModel]) -> FieldInfo:
    """The field behind a dotted key, given as its parts."""
    *sections, name = path
    owner = model
    for part in sections:
        owner = section_of(owner.model_fields[part].annotation) or owner
    return owner.model_fields[name]


def _member_text(annotation: Any, limits: str = "") -> str:
    base, *extras = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    limits = limits or _limits([limit for extra in extras for limit in getattr(extra, "metadata", [extra])])
    if get_origin(base) is Literal:
        words = [str(word) for word in get_args(base)]
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    if get_origin(base) is tuple:
        members = get_args(base)
        if members[-1] is Ellipsis:
            return f"a list, each {_member_text(members[0])}"
        return f"a list of {len(members)}: {' and '.join(_member_text(member) for member in members)}"
    return f"{_TYPE_WORDS.get(base, 'any value')}{limits}"


def _limits(metadata: Iterable[Any]) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    pairs = [(sign, getattr(limit, name, None)) for limit in metadata for name, sign in signs.items()]
    found = [f"{sign} {value}" for sign, value in pairs if value is not None]
    return f" {' and '.join(found)}" if found else ""


def _words(annotation: Any) -> list[str]:
    """The allowed words of a key, if it takes words."""
    return [str(word) for leaf in _leaves(annotation) if get_origin(leaf) is Literal for word in get_args(leaf)]


def _members(annotation: Any) -> list[Any]:
    """The members of a union, each still Annotated."""
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in _members(member)]
    return [annotation]


def _leaves(annotation: Any) -> list[Any]:
    """The members of a union, Annotated stripped."""
    if get_origin(annotation) is Annotated:
        return _leaves(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [leaf for member in get_args(annotation) for leaf in _leaves(member)]
    return [annotation]


def _tidy_value(value: Any, leaves: list[Any], key: str) -> Any:
    if isinstance(value, bool) and not {bool, Any} & {leaf for leaf in leaves if isinstance(leaf, type) or leaf is Any}:
        raise ConfigError(f"{key}={_shown(value)}: a number or a word is needed, not true or false")
    if not isinstance(value, str):
        return value
    if value.lower() == "none" and type(None) in leaves:
        return None
    if Path in leaves:
        return str(Path(value).expanduser())
    if any(get_origin(leaf) is tuple and get_args(leaf)[0] is str for leaf in leaves):
        return [value]
    return value


def _shown(value: Any) -> str:
    """A value as YAML would show it, cut short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) if len(str(value)) <= 60 else f"{str(value)[:57]}..."
