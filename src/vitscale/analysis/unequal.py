"""Studies of mixed devices: what each kind costs the others, and what a subset would train. Torch-free.

In: the series of a study. Out: Unequal, for each series that adds other kinds of device. Only series with the same
images per device at every point can be read: there a slower device shows in the step time and in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from vitscale.analysis.cases import Case, summarise_case
from vitscale.analysis.scaling import Line
from vitscale.analysis.summary import Unequal
from vitscale.estimate.unequal import Cluster, Seen, Work, advise, infer


def find_unequal(lines: Iterable[Line]) -> tuple[Unequal, ...]:
    """What the series with mixed devices show, the longest first."""
    found = [(len(line.measured), told) for line in lines if (told := _describe(line))]
    return tuple(told for _, told in sorted(found, key=lambda pair: -pair[0]))


def _describe(line: Line) -> Unequal | None:
    cases = [case for case in line.measured if len(case.identity.device_names) == case.identity.world_size]
    each = {_images_per_device(case) for case in cases}
    mixed = [case for case in cases if len(set(case.identity.device_names)) > 1]
    if not mixed or len(each) != 1 or None in each:
        return None
    images = next(one for one in each if one is not None)
    cluster = infer([Seen(case.identity.device_names, _step_s(case)) for case in cases], images)
    if cluster is None:
        return None
    advice = advise(cluster, images)
    return Unequal(
        label=line.label,
        cases=tuple(case.name for case in mixed),
        images_per_device=images,
        seconds={device.name: device.cost.seconds(images) for device in cluster.devices},
        devices=tuple(device.name for device in cluster.devices),
        kept=_names(cluster, advice.kept),
        dropped=tuple(cluster.devices[place].name for place in advice.dropped),
        kept_gain=_gain(advice.kept, advice.everyone),
        shares=advice.underfed.images,
        underfed_gain=_gain(advice.underfed, advice.everyone),
    )


def _names(cluster: Cluster, work: Work) -> tuple[str, ...]:
    return tuple(cluster.devices[place].name for place in sorted(work.places))


def _gain(work: Work, base: Work) -> float:
    return work.images_per_s / base.images_per_s


def _images_per_device(case: Case) -> int | None:
    total, size = case.identity.global_batch_size, case.identity.world_size
    return total // size if total and total % size == 0 else None


def _step_s(case: Case) -> float:
    """Seconds of an update, also where a source gives only epochs."""
    rate, total = summarise_case(case).images_per_s, case.identity.global_batch_size
    assert rate is not None
    assert total is not None
    return total / rate.value
