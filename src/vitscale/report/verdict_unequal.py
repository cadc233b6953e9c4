"""Verdict sentences on devices of different kinds: what the slow ones cost, and what leaving them out would bring.

All gains here are predictions from the study's own series, not measurements, and the sentence says so.
"""

from __future__ import annotations

from vitscale.analysis.summary import Summary, Unequal
from vitscale.estimate.unequal import WORTH, runs
from vitscale.report import words
from vitscale.report.claims import Statement


def devices(summary: Summary) -> list[Statement]:
    """What the longest series over mixed devices shows, and how many others come to the same advice."""
    if not summary.unequal:
        return []
    first, *others = summary.unequal
    text = _told(first)
    if len(summary.series) > 1:
        text = f"{words.clean(first.label)}: {text}"
    if others:
        same = sum(set(other.dropped) == set(first.dropped) for other in others)
        text += f" The same advice follows from {same} of {len(others)} other series over mixed devices."
    return [Statement("Mixed devices", text)]


def _told(one: Unequal) -> str:
    slow = list(dict.fromkeys(one.dropped))
    if not slow:
        return (
            f"all of {_list(one.devices)} are worth having with equal shares; the slowest needs {_times(one)} times as "
            f"long as the fastest.{_balanced(one)}"
        )
    costs = words.listing([f"{words.clean(name)} {words.duration(one.seconds[name])}" for name in slow])
    fast = words.duration(min(one.seconds.values()))
    return (
        f"leave out {_list(one.dropped)}, or give less to them. For its {one.images_per_device} images of an update "
        f"the fastest device needs {fast}, but {costs}, and all wait for the slowest. {_list(one.kept)} alone are "
        f"predicted to train {words.number(one.kept_gain)} times the images/s of all "
        f"{len(one.devices)}, with {len(one.kept)} x {one.images_per_device} images in an update.{_balanced(one)} "
        "Predicted from the series, with each device's time proportional to its images."
    )


def _balanced(one: Unequal) -> str:
    if one.underfed_gain < 1 + WORTH:
        return ""
    shares = ", ".join(str(share) for share in one.shares)
    return (
        f" All {len(one.devices)} with balanced shares of the same global batch ({shares} images) are predicted to "
        f"train {words.number(one.underfed_gain)} times."
    )


def _times(one: Unequal) -> str:
    return words.number(max(one.seconds.values()) / min(one.seconds.values()))


def _list(names: tuple[str, ...]) -> str:
    """'RTX 3070 x3 and Tesla P4'."""
    parts = [(words.clean(name), count) for name, count in runs(names)]
    return words.listing([f"{name} x{count}" if count > 1 else name for name, count in parts])
