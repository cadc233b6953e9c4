"""What the study ran on, flat: 'cpu.model' -> value. Differences between environments first. No markup here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitscale.analysis.summary import Summary
from vitscale.report import words


def facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Each leaf of a nested description, by its dotted name."""
    return dict(_leaves(environment, ""))


def rows(summary: Summary) -> list[tuple[str, list[str]]]:
    """A row per fact, a column per environment; rows that differ come first."""
    columns = [facts(environment) for environment in summary.environments]
    names = list(dict.fromkeys(name for column in columns for name in column))
    made = [(name, [column.get(name, "") for column in columns]) for name in names]
    return sorted(made, key=lambda row: len(set(row[1])) == 1)


def headline(summary: Summary) -> str:
    """One line: devices, torch, driver, as far as they are known."""
    if not summary.environments:
        return ""
    environment = summary.environments[0]
    packages = environment.get("packages") or {}
    parts = [_devices(environment)]
    parts += [f"{name} {packages[name]}" for name in ("torch", "deepspeed") if packages.get(name)]
    if driver := environment.get("driver"):
        parts.append(f"driver {driver}")
    if len(summary.environments) > 1:
        parts.append(f"{len(summary.environments)} different environments")
    return " · ".join(words.clean(part) for part in parts if part)


def _devices(environment: Mapping[str, Any]) -> str:
    names = [device.get("name", "") for device in environment.get("devices") or [] if isinstance(device, Mapping)]
    if names:
        return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    cpu = environment.get("cpu") or {}
    cores = cpu.get("usable_cores")
    return f"{cpu.get('model') or 'CPU'}{f', {cores} cores' if cores else ''}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{words.clean(key)}" if name else words.clean(key))
    elif isinstance(value, list | tuple):
        if all(not isinstance(item, Mapping | list | tuple) for item in value):
            yield name, words.clean(", ".join(str(item) for item in value)) or "none"
        else:
            for index, item in enumerate(value):
                yield from _leaves(item, f"{name}.{index}")
    else:
        yield name, _leaf(name, value)


def _leaf(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{words.gib(value)} GiB"
    return words.clean(value)
