"""Mixup and cutmix over the pairs (2i, 2i+1) of a window, with soft targets.

Pairs, because both partners then sit in the same micro-batch at any world size. Each pair has its own lambda. Both
members are mixed with each other, so no image is seen more often than another. An image without a partner (the last
of an odd window, padding) stays as it is. In: keyed draws for a whole window. Out: mixed images, targets and weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from vitscale.config.run import DataConfig
from vitscale.data.draws import Purpose, beta, uniform


@dataclass(frozen=True)
class PairMix:
    """How P pairs are mixed. keep: (P,) float32, share of its own image that each member keeps; 1: not mixed.
    boxes: (P, 4) int64, rows y0..y1 and columns x0..x1 that are swapped; empty where the pair is not cut."""

    keep: NDArray[np.float32]
    boxes: NDArray[np.int64]

    def part(self, start: int, num_pairs: int, num_real: int) -> PairMix:
        """Pairs start..start+num_pairs, of which only the first `num_real` have two real members."""
        keep = np.ones(num_pairs, dtype=np.float32)
        boxes = np.zeros((num_pairs, 4), dtype=np.int64)
        keep[:num_real] = self.keep[start : start + num_real]
        boxes[:num_real] = self.boxes[start : start + num_real]
        return PairMix(keep, boxes)


def mixes(data: DataConfig) -> bool:
    """True if pairs are to be mixed."""
    return data.mix_prob > 0 and (data.mixup > 0 or data.cutmix > 0)


def draw_pairs(data: DataConfig, seed: int, window: int, num_pairs: int, img_size: int) -> PairMix:
    """The mixing of all pairs of one window. With both alphas set, a fair coin decides for each pair."""
    draws = uniform(seed, Purpose.MIX, window, (num_pairs, 4))
    keep = np.ones(num_pairs, dtype=np.float32)
    boxes = np.zeros((num_pairs, 4), dtype=np.int64)
    mixed = draws[:, 0] < data.mix_prob
    cut = mixed & ((draws[:, 1] < 0.5) if data.mixup > 0 else True) if data.cutmix > 0 else np.zeros_like(mixed)
    blend = mixed & ~cut
    if data.mixup > 0:
        keep[blend] = beta(seed, Purpose.MIXUP_LAMBDA, window, data.mixup, num_pairs)[blend]
    if data.cutmix > 0:
        share = beta(seed, Purpose.CUTMIX_LAMBDA, window, data.cutmix, num_pairs)
        all_boxes = cut_boxes(share, draws[:, 2:], img_size)
        boxes[cut] = all_boxes[cut]
        # A box that the border clips is smaller than drawn: the target follows the pixels.
        area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
        keep[cut] = (1 - area / img_size**2).astype(np.float32)[cut]
    return PairMix(keep, boxes)


def cut_boxes(share: NDArray[np.float32], centres: NDArray[np.float32], img_size: int) -> NDArray[np.int64]:
    """Boxes (P, 4) of area 1 - share of a square image around uniform centres (P, 2), clipped at the border."""
    half = (img_size * np.sqrt(1 - share)).astype(np.int64)[:, None] // 2
    middle = (centres * img_size).astype(np.int64)
    low, high = np.clip(middle - half, 0, img_size), np.clip(middle + half, 0, img_size)
    return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)


def mix_images(images: torch.Tensor, keep: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) with pair p = images 2p and 2p+1 mixed; keep (P,), boxes (P, 4), P = B // 2."""
    pairs = images[: 2 * len(keep)].reshape(len(keep), 2, *images.shape[1:])
    height, width = images.shape[-2:]
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    y0, y1, x0, x1 = boxes.T[..., None].unbind()
    in_rows, in_columns = (rows >= y0) & (rows < y1), (columns >= x0) & (columns < x1)
    inside = (in_rows[:, :, None] & in_columns[:, None, :])[:, None, None]  # (P, 1, 1, H, W)
    is_cut = (y1 > y0)[:, :, None, None, None]
    own = torch.where(is_cut, 1 - inside.to(images.dtype), keep.to(images.dtype).view(-1, 1, 1, 1, 1))
    mixed = own * pairs + (1 - own) * pairs.flip(1)
    return torch.cat([mixed.flatten(0, 1), images[2 * len(keep) :]])


def mix_rows(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """(B,) or (B, K) values of the images, mixed as the images are: soft targets, class weights."""
    pairs = values[: 2 * len(keep)].reshape(len(keep), 2, *values.shape[1:])
    own = keep.view(-1, *(1,) * (pairs.dim() - 1))
    return torch.cat([(own * pairs + (1 - own) * pairs.flip(1)).flatten(0, 1), values[2 * len(keep) :]])


def one_hot(targets: torch.Tensor, num_classes: int) -> torch.Tensor:
    """(B,) int64 -> (B, num_classes) float32."""
    return functional.one_hot(targets, num_classes).to(torch.float32)
