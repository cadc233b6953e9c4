"""Random erasing: which boxes are drawn, and that they become the mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscale.data.erasing import AREA, RATIO, draw_holes, erase


def test_boxes_have_the_areas_and_ratios_that_are_asked() -> None:
    holes = draw_holes(1.0, 0, 0, 20_000, 400)
    heights, widths = holes[:, 1] - holes[:, 0], holes[:, 3] - holes[:, 2]
    share, ratio = heights * widths / 400**2, heights / widths
    assert holes.min() >= 0
    assert holes.max() <= 400
    assert share.min() == pytest.approx(AREA[0], abs=0.001)
    assert share.max() == pytest.approx(AREA[1], abs=0.002)
    assert share.mean() == pytest.approx(sum(AREA) / 2, abs=0.003)
    assert np.log(ratio).mean() == pytest.approx(np.log(RATIO[0] * RATIO[1]) / 2, abs=0.02)
    middle = (holes[:, 0] + holes[:, 1]) / 2
    assert middle.mean() == pytest.approx(200, abs=3)
    assert ((holes[:, 1] == 400).any(), (holes[:, 0] == 0).any()) == (True, True)


def test_a_share_of_the_images_is_erased() -> None:
    holes = draw_holes(0.25, 1, 2, 8000, 32)
    erased = (holes[:, 1] > holes[:, 0]) & (holes[:, 3] > holes[:, 2])
    assert erased.mean() == pytest.approx(0.25, abs=0.02)
    assert (holes[~erased] == 0).all()
    assert (draw_holes(0.25, 1, 2, 8000, 32) == holes).all()
    assert (draw_holes(0.25, 2, 2, 8000, 32) != holes).any()


def test_inside_a_box_stands_the_mean() -> None:
    images = torch.rand(3, 2, 6, 8) + 1
    holes = torch.tensor([[1, 3, 2, 7], [0, 0, 0, 0], [0, 6, 0, 8]])
    erased = erase(images, holes)
    assert (erased[0, :, 1:3, 2:7] == 0).all()
    kept = torch.ones(6, 8, dtype=torch.bool)
    kept[1:3, 2:7] = False
    assert torch.equal(erased[0][:, kept], images[0][:, kept])
    assert torch.equal(erased[1], images[1])
    assert (erased[2] == 0).all()
