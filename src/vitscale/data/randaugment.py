"""RandAugment (arXiv 1909.13719) from keyed draws: torchvision's fourteen operations, for one image or a whole batch.

In: uint8 images and, for each, which operations to apply (a code holds the operation and the sign of its strength).
Out: uint8 images. `apply_to_image` calls torchvision's own functions: the worker path, and the reference. `RandAugment`
does a batch at once on the device, whatever mixture of operations it holds, without a word to the host: first what
moves pixels, then what blends an image with another version of itself, then what maps values, as one table per image
and channel. The two differ by one of 255 levels at most, where a value lies on the edge of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from vitscale.data.draws import Purpose, uniform

OPERATIONS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
STRONGEST = 30  # torchvision counts magnitudes from 0 to 30


def draw_operations(seed: int, window: int, count: int, per_image: int) -> NDArray[np.int64]:
    """Codes (count, per_image) of one window: twice the operation's place in OPERATIONS, plus 1 for the minus sign."""
    draws = uniform(seed, Purpose.RANDAUGMENT, window, (count, per_image, 2))
    return (draws[..., 0] * len(OPERATIONS)).astype(np.int64) * 2 + (draws[..., 1] < 0.5)


def strength(name: str, magnitude: int, edge: int) -> float:
    """How far an operation goes at this magnitude of 0 to 30; `edge`: of the image along a translation, in pixels."""
    share = magnitude / STRONGEST
    match name:
        case "ShearX" | "ShearY":
            return 0.3 * share
        case "TranslateX" | "TranslateY":
            return 150.0 / 331.0 * edge * share
        case "Rotate":
            return 30.0 * share  # degrees
        case "Brightness" | "Color" | "Contrast" | "Sharpness":
            return 0.9 * share
        case "Posterize":
            return 8.0 - round(4 * share)  # bits that are kept
        case "Solarize":
            return 255.0 * (STRONGEST - magnitude) / STRONGEST  # values from here on are inverted
        case _:
            return 0.0


def apply_to_image(image: torch.Tensor, codes: NDArray[np.int64], magnitude: int) -> torch.Tensor:
    """uint8 (C, H, W) -> uint8 (C, H, W) by torchvision."""
    for code in codes.tolist():
        name, sign = OPERATIONS[code // 2], -1.0 if code % 2 else 1.0
        edge = image.shape[-1] if name.endswith("X") else image.shape[-2]
        image = _ONE[name](image, sign * strength(name, magnitude, edge))
    return image


def _affine(image: torch.Tensor, shear: list[float], translate: list[int], center: list[float] | None) -> torch.Tensor:
    bilinear = InterpolationMode.BILINEAR
    moved: torch.Tensor = tv.affine(image, 0.0, translate, 1.0, shear, interpolation=bilinear, center=center)
    return moved


def _degrees(slope: float) -> float:
    return math.degrees(math.atan(slope))


# From the upper left corner, as the original does; torchvision shears by angles, RandAugment by slopes.
_ONE: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "Identity": lambda image, by: image,
    "ShearX": lambda image, by: _affine(image, [_degrees(by), 0.0], [0, 0], [0.0, 0.0]),
    "ShearY": lambda image, by: _affine(image, [0.0, _degrees(by)], [0, 0], [0.0, 0.0]),
    "TranslateX": lambda image, by: _affine(image, [0.0, 0.0], [int(by), 0], None),
    "TranslateY": lambda image, by: _affine(image, [0.0, 0.0], [0, int(by)], None),
    "Rotate": lambda image, by: tv.rotate(image, by, interpolation=InterpolationMode.BILINEAR),
    "Brightness": lambda image, by: tv.adjust_brightness(image, 1.0 + by),
    "Color": lambda image, by: tv.adjust_saturation(image, 1.0 + by),
    "Contrast": lambda image, by: tv.adjust_contrast(image, 1.0 + by),
    "Sharpness": lambda image, by: tv.adjust_sharpness(image, 1.0 + by),
    "Posterize": lambda image, by: tv.posterize(image, int(abs(by))),
    "Solarize": lambda image, by: tv.solarize(image, abs(by)),
    "AutoContrast": lambda image, by: tv.autocontrast(image),
    "Equalize": lambda image, by: tv.equalize(image),
}


class Row(NamedTuple):
    """What one code does, in numbers; each operation uses some, and the others leave an image as it is."""

    x_of_x: float = 1.0  # where the pixel at (x, y) comes from, in pixels from the centre
    x_of_y: float = 0.0
    x_of_one: float = 0.0
    y_of_x: float = 0.0
    y_of_y: float = 1.0
    y_of_one: float = 0.0
    factor: float = 1.0  # factor x the image + rest x (grey x its grey version + ...)
    rest: float = 0.0
    grey: float = 0.0
    mean: float = 0.0
    blur: float = 0.0
    bits: float = 1.0  # values are cut to multiples of this
    bound: float = 256.0  # and inverted from here on
    stretch: float = 0.0
    equalize: float = 0.0


class RandAugment:
    """The operations on a whole batch. Holds their strengths as one table on the device, a row per code."""

    def __init__(self, magnitude: int, shape: torch.Size, device: torch.device) -> None:
        """shape: (C, H, W) of the images, C being 1 or 3."""
        channels, height, width = shape
        rows = []
        for name in OPERATIONS:
            by = strength(name, magnitude, width if name.endswith("X") else height)
            rows += [_row(name, signed, channels, height, width) for signed in (by, -by)]
        self._table = torch.tensor(rows, dtype=torch.float32, device=device)
        xs, ys = (torch.arange(size, device=device) - (size - 1) / 2 for size in (width, height))
        self._xs, self._ys = xs, ys[:, None]  # of each pixel, from the centre
        self._levels = torch.arange(256, device=device)

    def __call__(self, images: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """uint8 (B, C, H, W) and int64 codes (B, N) -> uint8 (B, C, H, W)."""
        values = images.to(torch.float32)
        for layer in codes.unbind(1):
            row = self._table[layer].view(-1, len(Row._fields), 1, 1, 1).unbind(1)  # (B, 1, 1, 1) each
            values = self._move(values, *row[:6])
            values = self._blend(values, *row[6:11])
            values = self._map_values(values, *(column[..., 0] for column in row[11:]))
        return values.to(torch.uint8)

    def _move(self, values: torch.Tensor, *row: torch.Tensor) -> torch.Tensor:
        """Shear, shift and turn: bilinear, zeros from outside; pixels that stay keep their value exactly."""
        height, width = values.shape[-2:]
        # No matrix product: that may round to TF32, and otherwise in a batch of another size.
        x_of_x, x_of_y, x_of_one, y_of_x, y_of_y, y_of_one = (column[:, 0] for column in row)  # (B, 1, 1) each
        xs = (x_of_x * self._xs + x_of_y * self._ys + x_of_one) / (width / 2)  # (B, H, W) in [-1, 1]
        ys = (y_of_x * self._xs + y_of_y * self._ys + y_of_one) / (height / 2)
        grid = torch.stack([xs, ys], dim=3)
        return functional.grid_sample(values, grid, padding_mode="zeros", align_corners=False).round_()

    def _blend(
        self,
        values: torch.Tensor,
        factor: torch.Tensor,
        rest: torch.Tensor,
        to_grey: torch.Tensor,
        to_mean: torch.Tensor,
        to_blur: torch.Tensor,
    ) -> torch.Tensor:
        """The image and another version of itself: black, grey, that one's mean, or blurred."""
        grey = _grey(values)
        other = to_grey * grey + to_mean * grey.mean((2, 3), keepdim=True) + to_blur * _blurred(values)
        return (factor * values + rest * other).clamp_(0, 255).floor_()

    def _map_values(
        self,
        values: torch.Tensor,
        bits: torch.Tensor,
        bound: torch.Tensor,
        stretches: torch.Tensor,
        equalizes: torch.Tensor,
    ) -> torch.Tensor:
        """Posterize, solarize, stretch and equalize, by a table of 256 entries for each image and channel."""
        flat = values.flatten(2).to(torch.int64)  # (B, C, H * W)
        counts = flat.new_zeros(*flat.shape[:2], 256, dtype=torch.int32)
        counts.scatter_add_(2, flat, counts.new_ones(1).expand_as(flat))
        table = (self._levels / bits).floor_() * bits  # (B, 1, 256)
        table = torch.where(table >= bound, 255 - table, table)
        table = torch.where(stretches > 0, _stretched(counts, self._levels), table)
        table = torch.where(equalizes > 0, _equalized(counts, self._levels), table)
        return table.gather(2, flat).view_as(values)


def _row(name: str, by: float, channels: int, height: int, width: int) -> Row:
    match name:
        case "ShearX":  # the upper row stays
            return Row(x_of_y=by, x_of_one=by * height / 2)
        case "ShearY":
            return Row(y_of_x=by, y_of_one=by * width / 2)
        case "TranslateX":
            return Row(x_of_one=-float(int(by)))
        case "TranslateY":
            return Row(y_of_one=-float(int(by)))
        case "Rotate":
            cos, sin = math.cos(math.radians(by)), math.sin(math.radians(by))
            return Row(x_of_x=cos, x_of_y=-sin, y_of_x=sin, y_of_y=cos)
        case "Brightness":
            return Row(factor=1 + by, rest=-by)
        case "Color" if channels == 3:  # grey has no colour to lose
            return Row(factor=1 + by, rest=-by, grey=1.0)
        case "Contrast":
            return Row(factor=1 + by, rest=-by, mean=1.0)
        case "Sharpness":
            return Row(factor=1 + by, rest=-by, blur=1.0)
        case "Posterize":
            return Row(bits=2.0 ** (8 - abs(by)))
        case "Solarize":
            return Row(bound=abs(by))
        case "AutoContrast":
            return Row(stretch=1.0)
        case "Equalize":
            return Row(equalize=1.0)
        case _:
            return Row()


def _grey(values: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) -> (B, 1, H, W): luma of ITU-R 601, in whole levels."""
    if values.shape[1] == 1:
        return values
    return (0.2989 * values[:, :1] + 0.587 * values[:, 1:2] + 0.114 * values[:, 2:]).floor_()


def _blurred(values: torch.Tensor) -> torch.Tensor:
    """The mean of each pixel, counted five times, and its eight neighbours, in whole levels; the rim stays."""
    if min(values.shape[-2:]) < 3:
        return values
    inner = values[..., 1:-1, 1:-1]
    mean = (functional.avg_pool2d(values, 3, stride=1) * 9 + 4 * inner) / 13
    blurred = values.clone()
    blurred[..., 1:-1, 1:-1] = mean.round_()
    return blurred


def _stretched(counts: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Tables (B, C, 256) that map the least value that occurs to 0 and the greatest to 255."""
    occurs = counts > 0
    least = torch.where(occurs, levels, 255).amin(2, keepdim=True)
    greatest = torch.where(occurs, levels, 0).amax(2, keepdim=True)
    span = (greatest - least) * (1.0 / 255.0)
    flat = greatest == least
    return torch.where(flat, levels, ((levels - least) / torch.where(flat, 1.0, span)).clamp_(0, 255).floor_())


def _equalized(counts: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Tables (B, C, 256) that level the histogram, by Pillow's integer arithmetic."""
    below = counts.cumsum(2) - counts
    greatest = torch.where(counts > 0, levels, 0).amax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, greatest)) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    return torch.where(step == 0, levels, table).to(torch.float32)
