"""Augmentation against torchvision v2, and the device path against the worker path, from the same draws."""

from typing import Any

import numpy as np
import pytest
import torch
from data_making import memory_images
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from vitscale.config.run import DataConfig
from vitscale.data.transforms import (
    WorkerTransform,
    as_channels,
    choose_augment_on,
    crop_and_flip,
    resize_to,
    seeded,
    to_input,
)

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
NO_CODES = np.empty(0, dtype=np.int64)


def smooth_images(count: int, height: int, width: int) -> torch.Tensor:
    """Images with structure, up to the ends of the range."""
    noise = memory_images(count, height // 4, width // 4).pixels
    return tv.resize(noise, [height, width], interpolation=InterpolationMode.BILINEAR)


def worker_path(data: DataConfig, images: torch.Tensor, placement: np.ndarray, img_size: int, **options: Any) -> Any:
    transform = WorkerTransform(data, img_size, **{"in_memory": True, "augment": True, **options})
    return torch.stack([transform(image, place, NO_CODES, 7) for image, place in zip(images, placement, strict=True)])


def test_crop_and_flip_are_torchvisions() -> None:
    images = memory_images(40, 9, 6).pixels
    placement = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    ours = crop_and_flip(images, placement, padding=2, flip=True)
    for image, (down, right, flip), got in zip(images, placement, ours, strict=True):
        expected = tv.crop(tv.pad(image, [2]), int(down * 5), int(right * 5), 9, 6)
        assert torch.equal(got, tv.horizontal_flip(expected) if flip < 0.5 else expected)


def test_every_offset_and_both_directions_occur() -> None:
    image = torch.ones(1, 1, 5, 5, dtype=torch.uint8)
    image[0, 0, 2, 1] = 200
    placement = torch.rand(4000, 3, generator=torch.Generator().manual_seed(0))
    moved = crop_and_flip(image.expand(4000, -1, -1, -1), placement, padding=1, flip=True)
    places = (moved == 200).flatten(1).nonzero()[:, 1]
    counts = torch.bincount(places, minlength=25).view(5, 5)
    assert (counts[1:4] > 0).all()
    assert counts[[0, 4]].sum() == 0
    # Columns 0 to 2 as it is, 2 to 4 mirrored: all rows and, but for column 2, all columns equally often.
    assert (counts[1:4].sum(1) / 4000).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert (counts.sum(0) / 4000).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6], abs=0.03)


def test_nothing_asked_changes_nothing() -> None:
    images = memory_images(3).pixels
    assert crop_and_flip(images, torch.zeros(3, 3), 0, False) is images


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (32, 32, 48), (64, 48, 24), (40, 100, 32)])
@pytest.mark.parametrize("crop_share", [1.0, 0.875])
def test_input_is_torchvisions(height: int, width: int, size: int, crop_share: float) -> None:
    images = smooth_images(4, height, width)
    reference = v2.Compose(
        [
            v2.ToDtype(torch.float32, scale=True),
            v2.Resize(round(size / crop_share), interpolation=InterpolationMode.BILINEAR, antialias=True),
            v2.CenterCrop(size),
            v2.Normalize(MEAN, STD),
        ]
    )
    ours = to_input(images, size, as_channels(MEAN, CPU), as_channels(STD, CPU), crop_share)
    assert ours.shape == (4, 3, size, size)
    assert ours.is_contiguous()
    assert (ours - reference(images)).abs().max() < 1e-5
    assert images.dtype == torch.uint8


def test_device_and_worker_paths_are_equal_without_a_resize() -> None:
    data = DataConfig(flip=True, crop_padding=3)
    images = memory_images(16, 12, 12).pixels
    placement = np.random.default_rng(0).random((16, 3), dtype=np.float32)
    device = crop_and_flip(images, torch.from_numpy(placement), 3, True)
    assert torch.equal(device, worker_path(data, images, placement, 12))


@pytest.mark.parametrize(("size", "height", "width"), [(48, 32, 32), (12, 32, 32), (24, 64, 40)])
def test_device_and_worker_paths_differ_by_rounding_with_a_resize(size: int, height: int, width: int) -> None:
    data = DataConfig(flip=True, crop_padding=2)
    images = smooth_images(8, height, width)
    placement = np.random.default_rng(0).random((8, 3), dtype=np.float32)
    zero, one = as_channels((0,) * 3, CPU), as_channels((1 / 255,) * 3, CPU)
    device = to_input(crop_and_flip(images, torch.from_numpy(placement), 2, True), size, zero, one)
    worker = worker_path(data, images, placement, size).float()
    assert 0 < (device - worker).abs().max() <= 1.5


def test_files_are_resized_first_and_cropped_at_img_size() -> None:
    data = DataConfig(crop_padding=4)
    image = smooth_images(1, 64, 40)[0]
    placement = np.array([[0.0, 0.0, 0.9]], dtype=np.float32)
    from_file = worker_path(data, image[None], placement, 16, in_memory=False)[0]
    resized = resize_to(image, 16)
    assert torch.equal(from_file[:, 4:, 4:], resized[:, :-4, :-4])
    assert from_file[:, :4].sum() == 0
    assert torch.equal(worker_path(data, image[None], placement, 16, in_memory=False, augment=False)[0], resized)


def test_random_resized_crop_is_torchvisions_under_the_samples_seed() -> None:
    data = DataConfig(random_resized_crop=True, rrc_scale=(0.2, 0.9))
    image = smooth_images(1, 64, 40)[0]
    transform = WorkerTransform(data, 16, in_memory=False, augment=True)
    reference = v2.RandomResizedCrop(16, scale=(0.2, 0.9), antialias=True)
    place = np.ones(3, dtype=np.float32)
    crops = []
    for seed in (1, 2, 1, 2**64 - 1):
        with seeded(seed):
            expected = reference(image)
        crops.append(transform(image, place, NO_CODES, seed))
        assert torch.equal(crops[-1], expected)
    assert torch.equal(crops[0], crops[2])
    assert not torch.equal(crops[0], crops[1])


def test_the_global_generator_is_left_alone() -> None:
    data = DataConfig(randaugment=2, random_resized_crop=True)
    transform = WorkerTransform(data, 16, in_memory=True, augment=True)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    transform(smooth_images(1, 32, 32)[0], np.ones(3, dtype=np.float32), np.array([12, 5]), 99)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("keys", "in_memory", "expected"),
    [
        ({}, True, "device"),
        ({"flip": True, "crop_padding": 4, "mixup": 0.8}, True, "device"),
        ({}, False, "workers"),
        ({"randaugment": 2, "random_erasing": 0.25}, True, "device"),
        ({"random_resized_crop": True}, True, "workers"),
        ({"augment_on": "workers"}, True, "workers"),
        ({"augment_on": "device"}, False, "device"),
    ],
)
def test_where_to_augment(keys: dict[str, Any], in_memory: bool, expected: str) -> None:
    assert choose_augment_on(DataConfig(**keys), in_memory) == expected
