"""Words for lists and numbers in analysis' sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def some(names: Iterable[object], most: int = 3) -> str:
    """A few names, and how many more there are."""
    known = [str(name) for name in names]
    if len(known) <= most + 1:
        return " and ".join([*(", ".join(known[:-1]),), known[-1]] if len(known) > 1 else known)
    return f"{', '.join(known[:most])} and {len(known) - most} more"


def count(number: int, noun: str) -> str:
    """'1 case', '2 cases', '2 series'."""
    return f"{number} {noun}{'' if number == 1 or noun.endswith('s') else 's'}"


def span(values: Sequence[float], unit: str = "") -> str:
    """From the least to the largest."""
    low, high = min(values), max(values)
    return f"{low:,.4g}{unit}" if low == high else f"{low:,.4g} to {high:,.4g}{unit}"
