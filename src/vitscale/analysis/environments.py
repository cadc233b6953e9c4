"""What two measurements ran on, and where that differs. Torch-free.

In: environments as measure.environment describes them, and identities. Out: differences by name, for lint and compare.
vitscale's own version and the state of its source are left out: they are what a comparison is often about. So is the
kernel's build and everything that names a machine but does not change its speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitscale.results.record import Identity, Record

_SOFTWARE = ("python", "packages", "torch_build", "driver")
_SETTINGS = ("variables", "torch_threads")
_HARDWARE = ("devices", "cpu", "links", "networks")
_NOT_SPEED = frozenset({"packages.vitscale", "cpu.memory_bytes"})
_PLACES = ("_DIR", "_PATH", "_HOME", "_VISIBLE_DEVICES")  # variables that say where, not how
# Work that must be the same: data, model, numbers, devices, sizes.
_WORK = (
    "model",
    "num_parameters",
    "img_size",
    "patch_size",
    "data_source",
    "train_images",
    "precision",
    "device_type",
    "device_names",
    "world_size",
    "nodes",
    "devices_per_node",
    "global_batch_size",
)
# What a comparison may be about; said, not refused.
_TREATMENT = (
    "engine",
    "zero_stage",
    "compile",
    "cuda_graph",
    "micro_batch_size",
    "grad_accum_steps",
    "optimizer",
    "lr",
    "lr_scaling",
    "warmup_updates",
)
_CONFIG_NOT_SPEED = ("log", "checkpoint", "eval", "train.seed")


def software(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """The flat part of an environment that is software."""
    return dict(_flat(environment or {}, _SOFTWARE))


def hardware(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """The flat part of an environment that is hardware."""
    return dict(_flat(environment or {}, _HARDWARE))


def settings(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    """Variables and threads. Within a study they may follow the world size; for one case they must be the same."""
    flat = _flat(environment or {}, _SETTINGS)
    return {key: value for key, value in flat if not key.endswith(_PLACES)}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two flat mappings, with both values."""
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def unequal(a: Record, b: Record) -> dict[str, tuple[Any, Any]]:
    """What forbids a comparison: unequal work, software or hardware. An environment that is not known forbids none."""
    found = _fields(a.identity, b.identity, _WORK)
    if a.environment and b.environment:
        for part in (software, hardware, settings):
            found.update(differences(part(a.environment), part(b.environment)))
    if a.identity.nodes == b.identity.nodes == 1:
        found.pop("networks", None)  # nothing of one node's work crosses them, and containers rename them
    return found


def treatment(a: Record, b: Record) -> dict[str, tuple[Any, Any]]:
    """What else differs, and may be the point of the comparison."""
    found = _fields(a.identity, b.identity, _TREATMENT)
    # The identity says what compile and cuda_graph became; in the config they may be auto.
    known = {key.rpartition(".")[2] for key in found} | {"name", "local_batch_size", "compile", "cuda_graph"}
    sections = [key for key in (a.config or {}) if key not in _CONFIG_NOT_SPEED]
    of_a, of_b = (dict(_flat(record.config or {}, sections)) for record in (a, b))
    for key, values in differences(of_a, of_b).items():
        if key not in _CONFIG_NOT_SPEED and key.rpartition(".")[2] not in known:
            first, second = ("none" if value is None and of_a and of_b else value for value in values)
            found[key] = (first, second)
    return found


def _fields(a: Identity, b: Identity, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    return {name: pair for name in names if (pair := (getattr(a, name), getattr(b, name)))[0] != pair[1]}


def _flat(value: Mapping[str, Any], keys: Any) -> Iterator[tuple[str, Any]]:
    for key in keys:
        yield from _leaves(key, value.get(key))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if path in _NOT_SPEED or value is None:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    else:
        yield path, value
