"""Random erasing (arXiv 1708.04896) from keyed draws: a box of an image takes the data's mean.

In: draws for a whole window. Out: boxes, and normalised images in which the box is 0. It works on the batch that the
model gets, after normalisation and before mixing, wherever the other transforms run.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitscale.data.draws import Purpose, uniform

AREA = (0.02, 0.33)  # share of the image
RATIO = (0.3, 3.3)  # height by width


def draw_holes(probability: float, seed: int, window: int, count: int, img_size: int) -> NDArray[np.int64]:
    """Boxes (count, 4), rows y0..y1 and columns x0..x1 of each image; empty where nothing is erased.

    Area uniform, ratio log-uniform, and the place uniform among those where the whole box fits. A side longer than
    the image is cut, where torchvision would draw anew.
    """
    draws = uniform(seed, Purpose.ERASING, window, (count, 5)).astype(np.float64)
    area = img_size**2 * (AREA[0] + draws[:, 1] * (AREA[1] - AREA[0]))
    ratio = np.exp(np.log(RATIO[0]) + draws[:, 2] * np.log(RATIO[1] / RATIO[0]))
    sides = np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)], axis=1)
    sides = np.clip(np.rint(sides).astype(np.int64), 1, img_size)
    low = (draws[:, 3:] * (img_size - sides + 1)).astype(np.int64)
    boxes = np.stack([low[:, 0], low[:, 0] + sides[:, 0], low[:, 1], low[:, 1] + sides[:, 1]], axis=1)
    return np.where(draws[:, :1] < probability, boxes, 0)


def erase(images: torch.Tensor, holes: torch.Tensor) -> torch.Tensor:
    """Normalised (B, C, H, W) with 0 inside `holes` (B, 4)."""
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    y0, y1, x0, x1 = holes.T[..., None].unbind()  # (B, 1) each
    in_rows, in_columns = (rows >= y0) & (rows < y1), (columns >= x0) & (columns < x1)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0.0)
