"""Unequal devices on numbers that can be checked by hand, and on a published cluster."""

from __future__ import annotations

import math

import pytest

from vitscale.estimate.communication import ring_factor
from vitscale.estimate.network import Line
from vitscale.estimate.unequal import Cluster, Device, Seen, advise, infer

FAST, SLOW = Device("fast", Line(0.0, 0.01)), Device("slow", Line(0.0, 0.04))

# From the logs published with arXiv 2602.21081 (its Tesla cluster, ViT-B/16 on CIFAR-10, DeepSpeed ZeRO 0, 16 images
# per GPU): seconds per epoch. The weak series trains a tenth of the 50,000 images per GPU; devices come in this order.
TESLA = ("RTX 3070", "RTX 3070", "RTX 3070", "GTX 1070", "Tesla P4")
WEAK = {1: 71.35, 2: 177.50, 3: 215.70, 4: 393.22, 5: 1748.62}
STRONG = {1: 712.96, 2: 908.18, 3: 739.10, 4: 985.98, 5: 3435.96}
BATCH, IMAGES = 16, 50_000


def updates(images: int, devices: int) -> int:
    return math.ceil(images / (BATCH * devices))


@pytest.fixture
def tesla() -> Cluster:
    seen = [Seen(TESLA[:n], seconds / updates(5_000 * n, n)) for n, seconds in WEAK.items()]
    cluster = infer(seen, BATCH)
    assert cluster is not None
    return cluster


@pytest.mark.parametrize("count", STRONG)
def test_the_weak_series_of_a_published_cluster_predicts_the_strong_one(tesla: Cluster, count: int) -> None:
    work = tesla.lockstep(range(count), BATCH)
    assert work.step_s * updates(IMAGES, count) == pytest.approx(STRONG[count], rel=0.1)


def test_and_the_advice_is_to_leave_the_two_weak_devices_out_or_to_give_them_less(tesla: Cluster) -> None:
    advice = advise(tesla, BATCH)
    assert [tesla.devices[place].name for place in advice.dropped] == ["GTX 1070", "Tesla P4"]
    assert advice.kept.epoch_s(IMAGES) == pytest.approx(STRONG[3], rel=0.1)
    assert advice.kept.epoch_s(IMAGES) < advice.everyone.epoch_s(IMAGES) / 4
    *strong, gtx, p4 = advice.underfed.images
    assert sum(advice.underfed.images) == 5 * BATCH
    assert min(strong) > BATCH > gtx > p4
    assert advice.underfed.epoch_s(IMAGES) < advice.everyone.epoch_s(IMAGES) / 4


def test_a_network_is_told_from_the_devices() -> None:
    """Equal devices that take longer together: the ring's share is the network's."""
    seen = [Seen(("a",) * n, 0.5 + 0.3 * ring_factor(n)) for n in (1, 2, 4)]
    seen.append(Seen(("a",) * 4 + ("b",), 0.9 + 0.3 * ring_factor(5)))
    cluster = infer(seen, 10)
    assert cluster is not None
    assert cluster.link_s == pytest.approx(0.3, rel=1e-3)
    assert cluster.devices[0].cost.seconds(10) == pytest.approx(0.5, rel=1e-3)
    assert cluster.devices[4].cost.seconds(10) == pytest.approx(0.9, rel=1e-3)


def test_what_cannot_be_told_apart_is_not() -> None:
    assert infer([], 8) is None
    assert infer([Seen(("a", "b"), 1.0)], 8) is None
    assert infer([Seen(("a",), 1.0), Seen(("a", "b", "c"), 2.0)], 8) is None
    faster = infer([Seen(("a",), 1.0), Seen(("a", "b"), 0.9)], 8)
    assert faster is not None
    assert faster.devices[1].cost == faster.devices[0].cost  # nobody waits for it: how fast it is nobody knows


def test_balanced_shares_end_together_and_starve_nobody() -> None:
    cluster = Cluster((FAST, SLOW))
    work = cluster.balanced((0, 1), 50)
    assert work.images == (40, 10)
    assert work.step_s == pytest.approx(0.4)
    assert cluster.lockstep((0, 1), 25).step_s == pytest.approx(1.0)
    starving = Cluster((FAST, Device("stone", Line(0.0, 9.0))))
    assert starving.balanced((0, 1), 8).images == (7, 1)


def test_a_fixed_cost_is_not_shared_out() -> None:
    late = Device("late", Line(0.2, 0.01))
    assert Cluster((FAST, late)).balanced((0, 1), 60).images == (40, 20)


def test_equal_devices_are_all_kept_and_a_network_can_make_them_not_worth_it() -> None:
    assert advise(Cluster((FAST,) * 4), 16).dropped == ()
    slow_link = Cluster((FAST,) * 2, link_s=1.0)
    assert advise(slow_link, 16).dropped == (1,)


def test_a_slow_device_pays_where_it_still_brings_images() -> None:
    """Two devices at 1 : 1.5 train more in lockstep than the fast one alone; at 1 : 3 they do not."""
    for factor, dropped in ((1.5, ()), (3.0, (1,))):
        cluster = Cluster((FAST, Device("slow", Line(0.0, 0.01 * factor))))
        assert advise(cluster, 16).dropped == dropped
