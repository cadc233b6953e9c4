"""Rows as named scalars, the form in which TensorBoard, W&B and MLflow take them. Pure."""

from __future__ import annotations

import math
from typing import Any

# What orders or describes a row and is no measurement.
_NOT_SCALARS = ("kind", "update", "time")


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """'train/loss', 'eval/top1', ... of the row's finite numbers; bytes become GiB, as people read them.

    Non-finite values are left out: the services drop or refuse them, and metrics.jsonl keeps them.
    """
    values: dict[str, float] = {}
    for name, value in row.items():
        if name in _NOT_SCALARS or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            continue
        if name.endswith("_bytes"):
            name, value = name.removesuffix("bytes") + "gib", value / 2**30
        values[f"{row['kind']}/{name}"] = float(value)
    return values
