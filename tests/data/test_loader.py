"""The loaders' promise: what a sample looks like depends on the seed, the window and its position, and nothing else."""

from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from data_making import LazyImages, memory_images, run_config, train_loader, write_image_folder

from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.data.loader import EvalLoader, TrainLoader, class_weights
from vitscale.data.sources_folder import folder
from vitscale.errors import ConfigError, DataError

IMAGES = memory_images(45)
FULL = {"flip": True, "crop_padding": 2, "mixup": 0.8, "cutmix": 1.0}
PER_SAMPLE = {**FULL, "randaugment": 2, "random_erasing": 0.5}
ERASED = {"flip": True, "crop_padding": 2, "random_erasing": 0.5}
IN_WORKERS = {**PER_SAMPLE, "augment_on": "workers"}


def real(update: UpdateBatch, name: str) -> list[torch.Tensor]:
    return [getattr(batch, name)[batch.weights > 0] for batch in update.micro_batches]


def gather(loaders: list[TrainLoader], start: int, stop: int, name: str) -> list[torch.Tensor]:
    """The real samples of each update over all ranks, in global order."""
    by_rank = [list(loader.iterate(start, stop)) for loader in loaders]
    return [
        torch.cat([part for update in updates for part in real(update, name)]) for updates in zip(*by_rank, strict=True)
    ]


@pytest.mark.parametrize(
    "data", [{}, FULL, PER_SAMPLE, {**IN_WORKERS, "workers": 0}, {**FULL, "augment_on": "workers"}]
)
@pytest.mark.parametrize(("world_size", "micro", "accum"), [(1, 2, 8), (1, 8, 2), (2, 4, 2), (4, 4, 1), (4, 2, 2)])
def test_samples_do_not_depend_on_the_layout(data: dict[str, Any], world_size: int, micro: int, accum: int) -> None:
    config = run_config(**data)
    reference = [train_loader(IMAGES, config, micro=16, num_draws=3)]
    options = {"micro": micro, "accum": accum, "num_draws": 3, "world_size": world_size}
    for pad in (False, True):
        loaders = [
            train_loader(IMAGES, config, rank=rank, pad_to_micro_batch=pad, **options) for rank in range(world_size)
        ]
        for name in ("images", "targets", "draws", "weights"):
            expected = gather(reference, 0, 4, name)
            assert all(torch.equal(a, b) for a, b in zip(gather(loaders, 0, 4, name), expected, strict=True)), name


@pytest.mark.parametrize("data", [FULL, {**PER_SAMPLE, "workers": 0}])
@pytest.mark.parametrize(("shares", "accum"), [((10, 6), 1), ((2, 6), 2), ((8, 4, 2, 2), 1)])
def test_samples_do_not_depend_on_unequal_shares(data: dict[str, Any], shares: tuple[int, ...], accum: int) -> None:
    config, world_size = run_config(**data), len(shares)
    reference = [train_loader(IMAGES, config, micro=16, num_draws=3)]
    for pad in (False, True):
        options = {"micro": sum(shares) // world_size, "accum": accum, "num_draws": 3, "world_size": world_size}
        loaders = [
            train_loader(IMAGES, config, rank=rank, shares=shares, pad_to_micro_batch=pad, **options)
            for rank in range(world_size)
        ]
        for name in ("images", "targets", "draws", "weights"):
            expected = gather(reference, 0, 4, name)
            assert all(torch.equal(a, b) for a, b in zip(gather(loaders, 0, 4, name), expected, strict=True)), name
        full = [next(loader.iterate(0, 1)) for loader in loaders]
        assert [[len(batch.weights) for batch in update.micro_batches] for update in full] == [
            [share] * accum for share in shares
        ]


def test_shares_change_between_two_windows() -> None:
    reference = [train_loader(IMAGES, run_config(**FULL), micro=16)]
    options = {"micro": 8, "world_size": 2}
    loaders = [train_loader(IMAGES, run_config(**FULL), rank=rank, **options) for rank in range(2)]
    before = gather(loaders, 0, 2, "images")
    for loader in loaders:
        loader.rebalance((12, 4))
    after = gather(loaders, 2, 4, "images")
    assert len(next(loaders[1].iterate(3, 4)).micro_batches[0].weights) == 4
    for one, two in zip(before + after, gather(reference, 0, 4, "images"), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("data", [FULL, PER_SAMPLE, IN_WORKERS])
def test_any_window_can_be_restarted(data: dict[str, Any]) -> None:
    loader = train_loader(IMAGES, run_config(**data), micro=8, num_draws=2)
    whole = list(loader.iterate(0, 14))
    assert [update.window for update in whole] == list(range(14))
    assert [update.epoch for update in whole] == [0] * 6 + [1] * 6 + [2] * 2
    for start in (0, 5, 6, 13):
        fresh = train_loader(IMAGES, run_config(**data), micro=8, num_draws=2)
        for again, first in zip(fresh.iterate(start, 14), whole[start:], strict=True):
            for name in ("images", "targets", "draws"):
                assert torch.equal(getattr(again.micro_batches[0], name), getattr(first.micro_batches[0], name))


def test_an_epoch_has_every_sample_once_and_the_next_differs() -> None:
    loaders = [train_loader(IMAGES, run_config(), micro=4, rank=rank, world_size=2) for rank in range(2)]
    flat = [IMAGES.pixels[index].float().div(255).sub(0.5).div(0.25) for index in range(45)]
    orders = []
    for start in (0, 6):
        rows = torch.cat(gather(loaders, start, start + 6, "images"))
        orders.append([next(i for i, image in enumerate(flat) if torch.allclose(image, row)) for row in rows])
        assert sorted(orders[-1]) == list(range(45))
    assert orders[0] != orders[1]


def test_augmentation_differs_between_epochs_seeds_and_samples() -> None:
    one = memory_images(1).subset(np.zeros(8, dtype=np.int64))
    config = run_config(crop_padding=3)
    first, second = (update.micro_batches[0].images for update in train_loader(one, config, micro=8).iterate(0, 2))
    other = run_config({"seed": 1}, crop_padding=3)
    third = next(train_loader(one, other, micro=8).iterate(0, 1)).micro_batches[0].images
    assert len({tuple(image.flatten().tolist()) for image in torch.cat([first, second, third])}) > 15


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_a_short_last_update_is_shared_and_counted(world_size: int) -> None:
    images = memory_images(16 * world_size + 3)
    options = {"micro": 4, "accum": 4, "world_size": world_size, "num_draws": 1}
    loaders = [train_loader(images, run_config(), rank=rank, **options) for rank in range(world_size)]
    updates = [list(loader.iterate(0, 2)) for loader in loaders]
    for full, last in updates:
        assert [len(batch.weights) for batch in full.micro_batches] == [4] * 4
        assert (full.num_samples, last.num_samples) == (16 * world_size, 3)
    counts = {len(last.micro_batches) for _, last in updates}
    assert len(counts) == 1
    assert sum(batch.weights.sum() for _, last in updates for batch in last.micro_batches) == 3
    assert all(len(batch.images) >= 1 for _, last in updates for batch in last.micro_batches)
    assert f"the last update of each epoch has 3 of {16 * world_size} images" in loaders[0].notes


def test_padding_gives_static_shapes_of_weight_zero() -> None:
    loader = train_loader(memory_images(11), run_config(**FULL), micro=4, accum=2, pad_to_micro_batch=True, num_draws=2)
    for update in loader.iterate(0, loader.updates_per_epoch):
        assert all(batch.images.shape == (4, 3, 8, 8) for batch in update.micro_batches)
        assert all(batch.draws is not None and batch.draws.shape == (4, 2) for batch in update.micro_batches)
        assert sum(batch.weights.sum() for batch in update.micro_batches) == update.num_samples


def test_drop_last_drops_and_says_so() -> None:
    loader = train_loader(IMAGES, run_config(drop_last=True), micro=16)
    assert loader.updates_per_epoch == 2
    assert [update.num_samples for update in loader.iterate(0, 4)] == [16] * 4
    assert "leaves out 13 of 45 images" in loader.notes[0]
    assert train_loader(memory_images(32), run_config(), micro=16).notes == ()


@pytest.mark.parametrize("data", [FULL, PER_SAMPLE, {**PER_SAMPLE, "random_resized_crop": True, "crop_padding": 0}])
def test_worker_processes_change_nothing(data: dict[str, Any]) -> None:
    lazy = LazyImages(memory_images(20, 10, 14))
    here, there = (
        list(train_loader(lazy, run_config(**{**data, "workers": workers}), micro=4, accum=2).iterate(1, 5))
        for workers in (0, 2)
    )
    assert len(here) == len(there) == 4
    for a, b in zip(here, there, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(real(a, "images"), real(b, "images"), strict=True))


def test_device_and_workers_give_files_the_same_images() -> None:
    lazy = LazyImages(memory_images(20, 10, 14))
    images = [
        next(train_loader(lazy, run_config(**FULL, augment_on=where), micro=8).iterate(0, 1)).micro_batches[0].images
        for where in ("device", "workers")
    ]
    assert torch.equal(*images)


def test_device_and_workers_augment_alike() -> None:
    """One RandAugment operation differs by one of 255 levels at most, where a value lies on the edge of rounding."""
    lazy = LazyImages(memory_images(64, 10, 14))
    device, workers = (
        next(train_loader(lazy, run_config(**data, randaugment=1), micro=64, img_size=12).iterate(0, 1))
        for data in ({**ERASED, "augment_on": "device"}, {**ERASED, "augment_on": "workers"})
    )
    one, other = device.micro_batches[0].images, workers.micro_batches[0].images
    assert (one - other).abs().max() < 1.01 / 255 / 0.25
    assert ((one - other).abs() > 1e-5).float().mean() < 0.03
    assert torch.equal(one == 0, other == 0)


@pytest.mark.parametrize("augment_on", ["device", "workers"])
def test_randaugment_and_erasing_are_applied(augment_on: str) -> None:
    def images(**data: Any) -> torch.Tensor:
        loader = train_loader(IMAGES, run_config(augment_on=augment_on, **data), micro=40)
        return next(loader.iterate(0, 1)).micro_batches[0].images

    plain = images()
    changed = (images(randaugment=1) != plain).flatten(1).any(1).float().mean()
    assert 0.6 < changed < 1  # 13 of 14 operations, some of them without effect on some images
    assert not torch.equal(images(randaugment=1), images(randaugment=1, randaugment_magnitude=20))
    erased = images(random_erasing=0.5)
    holes = (erased != plain).any(1, keepdim=True).expand_as(erased)
    assert 0.3 < holes.flatten(1).any(1).float().mean() < 0.7
    assert (erased[holes] == 0).all()
    assert torch.equal(erased[~holes], plain[~holes])


def test_global_random_state_is_untouched() -> None:
    config = run_config(**{**PER_SAMPLE, "workers": 1})
    torch.manual_seed(3)
    np.random.seed(3)
    expected = (torch.rand(1).item(), np.random.rand())
    torch.manual_seed(3)
    np.random.seed(3)
    list(train_loader(IMAGES, config, micro=16).iterate(0, 2))
    assert (torch.rand(1).item(), np.random.rand()) == expected


def test_an_iterator_can_be_closed_early() -> None:
    for workers in (0, 2):
        iterator = train_loader(LazyImages(IMAGES), run_config(workers=workers), micro=4).iterate(0, 10_000)
        next(iterator)
        iterator.close()


def test_class_weights() -> None:
    labels = np.array([0] * 6 + [1] * 3 + [3])
    balanced = class_weights(run_config({"class_weights": "balanced"}).train, labels, 4)
    assert balanced is not None
    assert balanced[labels].mean() == pytest.approx(1)
    assert balanced[1] == pytest.approx(2 * balanced[0])
    assert class_weights(run_config().train, labels, 4) is None
    with pytest.raises(ConfigError, match=r"train\.class_weights has 2 values but the model has 4 classes"):
        class_weights(run_config({"class_weights": (1.0, 2.0)}).train, labels, 4)


def test_class_weights_reach_the_samples_and_are_mixed_like_targets() -> None:
    table = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    weights = {"class_weights": tuple(table.tolist())}
    plain = next(train_loader(IMAGES, run_config(weights), micro=16).iterate(0, 1)).micro_batches[0]
    assert torch.equal(plain.weights, table[plain.targets])
    mixed = next(train_loader(IMAGES, run_config(weights, mixup=0.8), micro=16).iterate(0, 1)).micro_batches[0]
    assert torch.allclose(mixed.weights, mixed.targets @ table)
    assert len(mixed.weights.unique()) > 5


def test_mixing_gives_soft_targets_and_needs_even_micro_batches() -> None:
    batch = next(train_loader(IMAGES, run_config(mixup=0.8), micro=4, accum=2).iterate(5, 6)).micro_batches
    assert [one.targets.shape for one in batch] == [(4, 5), (1, 5)]  # 45 images: the last has no partner
    assert sorted(batch[1].targets[0].tolist()) == [0, 0, 0, 0, 1]
    with pytest.raises(ConfigError, match=r"train\.micro_batch_size=3 must be even"):
        train_loader(IMAGES, run_config(mixup=0.8), micro=3)


def test_an_unreadable_image_is_named_from_a_worker(tmp_path: Any) -> None:
    write_image_folder(tmp_path, {"ant": 6, "bee": 6})
    bad = tmp_path / "bee" / "4.png"
    bad.write_bytes(bad.read_bytes()[:60])
    for workers in (0, 2):
        config = run_config(workers=workers)
        with pytest.raises(DataError, match=r"^\S*bee/4\.png cannot be decoded \(.*\); replace or remove this image$"):
            list(train_loader(folder(tmp_path, 3).train, config, micro=4).iterate(0, 3))


def test_phases_are_marked_and_do_not_nest() -> None:
    marks: list[str] = []

    class Recorder:
        @contextmanager
        def phase(self, name: str) -> Any:
            marks.append(f"+{name}")
            yield
            marks.append(f"-{name}")

    list(train_loader(IMAGES, run_config(**FULL), micro=8, recorder=Recorder()).iterate(0, 3))
    assert set(marks[::2]) == {"+data_wait", "+host_to_device"}
    assert all(begin[1:] == end[1:] for begin, end in zip(marks[::2], marks[1::2], strict=True))


@pytest.mark.parametrize("world_size", [1, 2, 4, 7])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("count", [3, 45])
def test_evaluation_sees_each_sample_once(world_size: int, pad: bool, count: int) -> None:
    images = memory_images(count)
    options: dict[str, Any] = {"micro_batch_size": 4, "img_size": 8, "mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    loaders = [
        EvalLoader(images, run_config(), rank=rank, world_size=world_size, pad_to_micro_batch=pad, **options)
        for rank in range(world_size)
    ]
    batches: list[list[MicroBatch]] = [list(loader) for loader in loaders]
    assert len({len(part) for part in batches}) == 1
    assert len(loaders[0]) == len(batches[0])
    rows = torch.cat([batch.images[batch.weights > 0] for part in batches for batch in part])
    targets = torch.cat([batch.targets[batch.weights > 0] for part in batches for batch in part])
    assert torch.equal(rows.round().to(torch.uint8), images.pixels)
    assert targets.tolist() == images.labels.tolist()
    if pad:
        assert {len(batch.images) for part in batches for batch in part} == {4}


@pytest.mark.parametrize("count", [1, 3, 45])
def test_evaluation_by_shares_sees_each_sample_once(count: int) -> None:
    images = memory_images(count)
    options: dict[str, Any] = {"micro_batch_size": 4, "img_size": 8, "mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    loaders = [EvalLoader(images, run_config(), rank=r, world_size=3, **options) for r in range(3)]
    even = [len(batch.weights) for batch in loaders[0]]
    for loader in loaders:
        loader.rebalance((20, 5, 5))  # 8, 2 and 2 of 12
    batches = [list(loader) for loader in loaders]
    assert {len(part) for part in batches} == {len(loader) for loader in loaders} == {-(-count // 12)}
    rows = torch.cat([batch.images[batch.weights > 0] for part in batches for batch in part])
    assert torch.equal(rows.round().to(torch.uint8), images.pixels)
    if count == 45:
        assert even[0] == 4
        assert [len(part[0].weights) for part in batches] == [8, 2, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_crops_the_centre_of_files_as_of_memory(workers: int) -> None:
    images = memory_images(6, 40, 30)
    options: dict[str, Any] = {"micro_batch_size": 4, "img_size": 16, "mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    config = run_config(eval_crop=0.8, workers=workers)
    held, read = (
        torch.cat([batch.images for batch in EvalLoader(split, config, **options)])
        for split in (images, LazyImages(images))
    )
    assert held.shape == (6, 3, 16, 16)
    assert (held - read).abs().max() <= 1.5


def test_a_set_on_the_device_gives_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitscale.data import loader as loader_module

    expected = gather([train_loader(IMAGES, run_config(**FULL))], 1, 4, "images")
    monkeypatch.setattr(loader_module, "resident_pixels", lambda pixels, device: pixels)
    resident = train_loader(IMAGES, run_config(**FULL))
    assert resident._resident is IMAGES.pixels
    for one, two in zip(gather([resident], 1, 4, "images"), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_an_evaluation_set_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitscale.data import loader as loader_module

    reads = []
    options: dict[str, Any] = {"micro_batch_size": 8, "img_size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3}

    def passes(loader: EvalLoader) -> list[list[MicroBatch]]:
        read = loader._reader
        monkeypatch.setattr(loader, "_reader", lambda job: reads.append(1) or read(job))
        next(iter(loader))  # given up, as a run that is stopped does
        return [list(loader) for _ in range(3)]

    plain = passes(EvalLoader(IMAGES, run_config(), **options))
    assert len(reads) == 1 + 3 * 6
    monkeypatch.setattr(loader_module, "may_stay", lambda pixels, device: True)
    kept = passes(EvalLoader(IMAGES, run_config(), **options))
    assert len(reads) == 1 + 3 * 6 + 1 + 6
    for one, two in zip(chain(*kept), chain(*plain), strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.targets, two.targets)
        assert torch.equal(one.weights, two.weights)


def test_new_shares_also_hold_for_a_split_that_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitscale.data import loader as loader_module

    monkeypatch.setattr(loader_module, "may_stay", lambda pixels, device: True)
    options: dict[str, Any] = {"micro_batch_size": 4, "img_size": 8, "mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    loaders = [EvalLoader(IMAGES, run_config(), rank=rank, world_size=2, **options) for rank in range(2)]
    for shares, sizes in (((1, 1), [4, 4]), ((3, 1), [6, 2])):
        for loader in loaders:
            loader.rebalance(shares)
        batches = [list(loader) for loader in loaders]
        assert [len(part[0].weights) for part in batches] == sizes
        rows = torch.cat([batch.images[batch.weights > 0] for part in batches for batch in part])
        assert torch.equal(rows.round().to(torch.uint8), IMAGES.pixels)
