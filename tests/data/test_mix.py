"""Mixup and cutmix: images, targets and boxes agree, both partners are treated alike, and odd ones stay as they are."""

import numpy as np
import pytest
import torch

from vitscale.config.run import DataConfig
from vitscale.data.mix import PairMix, cut_boxes, draw_pairs, mix_images, mix_rows, mixes, one_hot


def mixed(images: torch.Tensor, pairs: PairMix) -> torch.Tensor:
    return mix_images(images, torch.from_numpy(pairs.keep), torch.from_numpy(pairs.boxes))


def test_mixup_blends_both_partners() -> None:
    images = torch.rand(5, 3, 4, 4)
    pairs = PairMix(np.array([0.25, 1.0], np.float32), np.zeros((2, 4), np.int64))
    result = mixed(images, pairs)
    assert torch.allclose(result[0], 0.25 * images[0] + 0.75 * images[1])
    assert torch.allclose(result[1], 0.25 * images[1] + 0.75 * images[0])
    assert torch.equal(result[2:], images[2:])


def test_cutmix_swaps_a_box() -> None:
    images = torch.rand(4, 1, 6, 6)
    boxes = np.array([[1, 4, 2, 6], [0, 0, 0, 0]])
    result = mixed(images, PairMix(np.array([2 / 3, 1.0], np.float32), boxes))
    expected = images.clone()
    expected[0, :, 1:4, 2:6], expected[1, :, 1:4, 2:6] = images[1, :, 1:4, 2:6], images[0, :, 1:4, 2:6]
    assert torch.equal(result, expected)


def test_targets_follow_the_pixels() -> None:
    """Constant images of value 0 and 1: the mean of the result is the partner's share."""
    size, count = 9, 200
    for keys in ({"cutmix": 1.0}, {"mixup": 0.5}, {"mixup": 0.8, "cutmix": 1.0, "mix_prob": 0.7}):
        pairs = draw_pairs(DataConfig(**keys), 0, 3, count, size)
        images = torch.tensor([0.0, 1.0]).repeat(count).view(-1, 1, 1, 1).expand(-1, 1, size, size)
        means = mixed(images, pairs).mean((1, 2, 3))
        targets = mix_rows(one_hot(torch.tensor([0, 1]).repeat(count), 2), torch.from_numpy(pairs.keep))
        assert torch.allclose(targets[:, 1], means, atol=1e-5)
        assert torch.allclose(targets.sum(1), torch.ones(2 * count))


def test_mix_prob_and_the_choice_between_both() -> None:
    pairs = draw_pairs(DataConfig(mixup=1.0, cutmix=1.0, mix_prob=0.6), 0, 0, 20_000, 32)
    cut = pairs.boxes.any(1)
    blended = (pairs.keep != 1) & ~cut
    assert cut.mean() == pytest.approx(0.3, abs=0.03)  # a few cut pairs have an empty box
    assert blended.mean() == pytest.approx(0.3, abs=0.02)
    assert mixes(DataConfig(mixup=0.1))
    assert not mixes(DataConfig(mixup=0.1, mix_prob=0.0))
    assert not mixes(DataConfig())


def test_boxes_have_the_drawn_area_inside_the_image() -> None:
    rng = np.random.default_rng(0)
    share = rng.random(1000).astype(np.float32)
    boxes = cut_boxes(share, rng.random((1000, 2), dtype=np.float32), 64)
    assert boxes.min() >= 0
    assert boxes.max() <= 64
    heights, widths = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    edge = 64 * np.sqrt(1 - share)
    assert (heights <= edge).all()
    whole = (boxes > 0).all(1) & (boxes < 64).all(1)
    assert (np.abs(heights - edge)[whole] < 2).all()
    assert (np.abs(widths - edge)[whole] < 2).all()


def test_only_pairs_of_two_real_images_are_mixed() -> None:
    drawn = draw_pairs(DataConfig(mixup=1.0), 0, 0, 8, 4)
    part = drawn.part(3, 4, 2)
    assert part.keep.tolist() == [*drawn.keep[3:5].tolist(), 1.0, 1.0]
    assert drawn.part(0, 0, 0).keep.shape == (0,)
    alone = torch.rand(1, 3, 4, 4)
    assert torch.equal(mixed(alone, drawn.part(0, 0, 0)), alone)
