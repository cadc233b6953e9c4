"""The order of a run: a pure function of the seed, each sample once an epoch, shared evenly in whole units."""

import numpy as np
import pytest

from vitscale.data.sampler import Sampler, share
from vitscale.errors import ConfigError


@pytest.mark.parametrize(("drop_last", "updates", "seen"), [(False, 4, 100), (True, 3, 96)])
def test_an_epoch_has_each_sample_at_most_once(drop_last: bool, updates: int, seen: int) -> None:
    sampler = Sampler(100, 32, seed=0, drop_last=drop_last)
    windows = [sampler.window(number) for number in range(updates, 2 * updates)]
    indices = np.concatenate([window.indices for window in windows])
    assert sampler.updates_per_epoch == updates
    assert len(indices) == len(set(indices.tolist())) == seen
    assert {window.epoch for window in windows} == {1}


def test_any_window_can_be_asked_for_at_any_time() -> None:
    in_order = [Sampler(50, 16, seed=3).window(number) for number in range(12)]
    one = Sampler(50, 16, seed=3)
    for number in (11, 0, 7, 3, 7):
        assert one.window(number).indices.tolist() == in_order[number].indices.tolist()


def test_epochs_and_seeds_differ() -> None:
    first = Sampler(1000, 1000, seed=0)
    orders = [first.window(0), first.window(1), Sampler(1000, 1000, seed=1).window(0)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (orders[a].indices == orders[b].indices).mean() < 0.02


def test_the_meaning_of_a_seed_is_fixed() -> None:
    """A change here breaks the resuming of every run under way."""
    assert Sampler(8, 8, seed=0).window(0).indices.tolist() == [3, 7, 4, 2, 1, 6, 5, 0]


def test_drop_last_with_too_few_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"drop_last.*10 images.*global_batch_size is 16"):
        Sampler(10, 16, seed=0, drop_last=True)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("micro_batch_size", "unit"), [(1, 1), (3, 1), (4, 1), (2, 2), (4, 2)])
def test_shares_cover_every_position_once_with_equal_counts(world_size: int, micro_batch_size: int, unit: int) -> None:
    for num_real in range(1, 40):
        shares = [share(num_real, rank, [micro_batch_size] * world_size, unit) for rank in range(world_size)]
        covered = [position for ranges in shares for start, stop in ranges for position in range(start, stop)]
        assert covered == list(range(num_real))
        assert len({len(ranges) for ranges in shares}) == 1
        assert all(stop - start <= micro_batch_size for ranges in shares for start, stop in ranges)
        assert all(start % unit == 0 for ranges in shares for start, stop in ranges if start < stop)
        assert all(0 <= start < num_real for ranges in shares for start, _ in ranges)
        sizes = [sum(stop - start for start, stop in ranges) for ranges in shares]
        assert max(sizes) - min(sizes) <= unit
        # No rank runs a micro-step that none needs.
        assert len(shares[0]) == -(-max(sizes) // micro_batch_size)


@pytest.mark.parametrize(("sizes", "unit"), [((2, 1), 1), ((1, 3), 1), ((5, 1, 1), 1), ((4, 2, 1, 1), 1), ((6, 2), 2)])
def test_unequal_shares_cover_every_position_once_in_step(sizes: tuple[int, ...], unit: int) -> None:
    for num_real in range(1, 60):
        shares = [share(num_real, rank, sizes, unit) for rank in range(len(sizes))]
        covered = [position for ranges in shares for start, stop in ranges for position in range(start, stop)]
        assert covered == list(range(num_real))
        assert {len(ranges) for ranges in shares} == {-(-num_real // sum(sizes))}
        for size, ranges in zip(sizes, shares, strict=True):
            assert all(stop - start <= size for start, stop in ranges)
            assert all(start % unit == 0 for start, stop in ranges if start < stop)
            assert all(0 <= start < num_real for start, _ in ranges)
            quota = num_real * size / sum(sizes)
            assert abs(sum(stop - start for start, stop in ranges) - quota) < 2 * unit


def test_a_full_window_gives_grad_accum_steps_full_micro_steps() -> None:
    for rank in range(4):
        ranges = share(4 * 3 * 8, rank, [8] * 4, 2)
        assert [stop - start for start, stop in ranges] == [8, 8, 8]
    assert share(3 * 32, 1, [22, 10], 2) == [(66, 76), (76, 86), (86, 96)]


def test_pairs_need_an_even_micro_batch() -> None:
    with pytest.raises(ConfigError, match=r"train\.micro_batch_size=3 must be even"):
        share(10, 0, [3], 2)
