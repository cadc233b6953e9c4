"""RandAugment: one image by torchvision, a batch on the device, and both the same from the same draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_making import memory_images
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from vitscale.data.randaugment import OPERATIONS, STRONGEST, RandAugment, apply_to_image, draw_operations, strength

CPU = torch.device("cpu")
EXACT = ("Identity", "TranslateX", "TranslateY", "Posterize", "Solarize", "Equalize")


def smooth_images(count: int, height: int = 20, width: int = 28, channels: int = 3) -> torch.Tensor:
    """Images with structure; the first are flat, dark, bright and of two values."""
    images = tv.resize(memory_images(count, 5, 7).pixels, [height, width], interpolation=InterpolationMode.BILINEAR)
    for place, value in enumerate((0, 255, 97)):
        images[place] = value
    images[3] = (images[3] > 127) * 200
    return images[:, :channels]


@pytest.mark.parametrize("magnitude", [0, 7, 10, 30])
def test_strengths_are_torchvisions(magnitude: int) -> None:
    space = v2.RandAugment._AUGMENTATION_SPACE
    assert tuple(space) == OPERATIONS
    for name, (of_bins, _) in space.items():
        values = of_bins(STRONGEST + 1, 20, 28)
        expected = 0.0 if values is None else float(values[magnitude])
        ours = strength(name, magnitude, 28 if name.endswith("X") else 20)
        assert ours / (255 if name == "Solarize" else 1) == pytest.approx(expected, rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_one_image_is_torchvisions(name: str, sign: int) -> None:
    reference = v2.RandAugment(interpolation=InterpolationMode.BILINEAR)
    code = np.array([2 * OPERATIONS.index(name) + (sign < 0)])
    for image in smooth_images(6):
        by = strength(name, 9, 28 if name.endswith("X") else 20)
        by = by / 255 if name == "Solarize" else by if name == "Posterize" else sign * by
        expected = reference._apply_image_or_video_transform(
            image, name, by, interpolation=InterpolationMode.BILINEAR, fill=reference._fill
        )
        assert torch.equal(apply_to_image(image, code, 9), expected)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("magnitude", [0, 9, 30])
@pytest.mark.parametrize("channels", [3, 1])
def test_a_batch_is_what_its_images_are_alone(name: str, magnitude: int, channels: int) -> None:
    images = smooth_images(24, channels=channels)
    augment = RandAugment(magnitude, images.shape[1:], CPU)
    for sign in (0, 1):
        codes = np.full((24, 1), 2 * OPERATIONS.index(name) + sign)
        alone = torch.stack([apply_to_image(image, code, magnitude) for image, code in zip(images, codes, strict=True)])
        off = (augment(images, torch.from_numpy(codes)).int() - alone.int()).abs()
        assert off.max() <= 1, f"{name}: {off.max()} levels"
        # A tenth of all values lies on the edge of rounding where the factor is 0.1 or 1.9, all of a flat image may.
        assert (off[4:] > 0).float().mean() < 0.12
        if name in EXACT or (name == "Color" and channels == 1):
            assert off.max() == 0


def test_mixed_codes_do_not_touch_each_other() -> None:
    images = smooth_images(56)
    codes = draw_operations(3, 0, 56, 2)
    augment = RandAugment(9, images.shape[1:], CPU)
    together = augment(images, torch.from_numpy(codes))
    alone = torch.stack([apply_to_image(image, code, 9) for image, code in zip(images, codes, strict=True)])
    off = (together.int() - alone.int()).abs()
    # A level of difference can grow in the second operation: a stretch, or the edge of a posterized step.
    assert (off <= 1).float().mean() > 0.99
    one_by_one = torch.cat([augment(images[i : i + 1], torch.from_numpy(codes[i : i + 1])) for i in range(56)])
    assert torch.equal(together, one_by_one)
    assert augment(images, torch.zeros(56, 2, dtype=torch.int64)).equal(images)


def test_draws_are_even_and_keyed() -> None:
    codes = draw_operations(0, 5, 40_000, 1)[:, 0]
    assert codes.min() == 0
    assert codes.max() == 2 * len(OPERATIONS) - 1
    counts = np.bincount(codes, minlength=2 * len(OPERATIONS))
    assert np.abs(counts / 40_000 - 1 / 28).max() < 0.004
    assert (draw_operations(0, 5, 100, 2) == draw_operations(0, 5, 100, 2)).all()
    assert (draw_operations(0, 6, 100, 2) != draw_operations(0, 5, 100, 2)).any()
    assert draw_operations(0, 5, 7, 0).shape == (7, 0)


def test_the_same_work_for_any_codes() -> None:
    """Nothing that depends on values may wait for the device: no item(), no nonzero, no boolean indexing."""
    images, codes = smooth_images(8).to("meta"), torch.zeros(8, 2, dtype=torch.int64, device="meta")
    assert RandAugment(9, images.shape[1:], torch.device("meta"))(images, codes).shape == (8, 3, 20, 28)
