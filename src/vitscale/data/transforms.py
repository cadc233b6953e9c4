"""From uint8 images to the model's input: crop, flip, RandAugment, resize, normalisation.

The reference is torchvision v2 on tensors, bilinear with antialias. Two paths give the same image from the same draws:
  device path   whole batches, resized in float: crop_and_flip, RandAugment, then to_input
  worker path   one image, all in uint8: WorkerTransform, then to_input, which then has nothing to resize
They are equal bit for bit where nothing is resized, and within 1.5 of 255 levels where it is (the worker path rounds to
uint8 after resizing); data.randaugment says how far its own two versions differ. No randomness is drawn here except
inside torchvision's RandomResizedCrop, which runs under a seed of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as tv

from vitscale.config.augment import per_image_transforms
from vitscale.config.run import DataConfig
from vitscale.data.randaugment import apply_to_image

AugmentOn = Literal["device", "workers"]


def choose_augment_on(data: DataConfig, in_memory: bool) -> AugmentOn:
    """Where to augment: as asked, or for auto on the device if the set is in memory and no transform needs workers."""
    if data.augment_on != "auto":
        return data.augment_on
    return "device" if in_memory and not per_image_transforms(data) else "workers"


def resize_to(images: torch.Tensor, img_size: int, crop_share: float = 1.0) -> torch.Tensor:
    """(..., h, w) -> (..., img_size, img_size): the shorter edge to img_size / crop_share, then the centre."""
    edge = round(img_size / crop_share)
    if images.shape[-2:] != (edge, edge):
        images = tv.resize(images, [edge], interpolation=InterpolationMode.BILINEAR, antialias=True)
    return images if images.shape[-2:] == (img_size, img_size) else tv.center_crop(images, [img_size, img_size])


def as_channels(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """mean or std as a (1, C, 1, 1) tensor, made once: a copy in every step would cost more than the arithmetic."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


def to_input(
    images: torch.Tensor, img_size: int, mean: torch.Tensor, std: torch.Tensor, crop_share: float = 1.0
) -> torch.Tensor:
    """uint8 (B, C, h, w) -> normalised float32 (B, C, img_size, img_size), on the device of `images`."""
    scaled = resize_to(images.to(torch.float32).div_(255), img_size, crop_share)
    return scaled.sub_(mean).div_(std).contiguous()


def crop_and_flip(images: torch.Tensor, placement: torch.Tensor, padding: int, flip: bool) -> torch.Tensor:
    """Pad (B, C, H, W) by `padding` zeros, crop to the old size at random, mirror at random: one gather.

    placement: (B, 3) float32 in [0, 1): vertical place, horizontal place, mirrored if under 0.5.
    """
    if not padding and not flip:
        return images
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device).expand(len(images), height)
    columns = torch.arange(width, device=images.device).expand(len(images), width)
    if flip:
        columns = torch.where(placement[:, 2:] < 0.5, width - 1 - columns, columns)
    if padding:
        images = functional.pad(images, (padding,) * 4)
        offsets = (placement[:, :2] * (2 * padding + 1)).to(torch.int64)
        rows, columns = rows + offsets[:, :1], columns + offsets[:, 1:]
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return images[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


class WorkerTransform:
    """Everything up to the last uint8 image, for one image: the worker path.

    Order: random_resized_crop, or for image files the resize to img_size; pad and crop, flip; RandAugment; for sets in
    memory the resize to img_size. A set in memory is thus cropped at its own size, files at img_size.
    With augment=False only the part that image files need in any case: the resize, of a centre crop in evaluation.
    """

    def __init__(
        self,
        data: DataConfig,
        img_size: int,
        *,
        in_memory: bool,
        augment: bool,
        crop_share: float = 1.0,
    ) -> None:
        self.data = data
        self.img_size = img_size
        self.in_memory = in_memory
        self.augment = augment
        self.crop_share = crop_share
        self._crop: v2.RandomResizedCrop | None = None
        if augment and data.random_resized_crop:
            bilinear = InterpolationMode.BILINEAR
            self._crop = v2.RandomResizedCrop(img_size, scale=data.rrc_scale, interpolation=bilinear, antialias=True)

    def __call__(
        self, image: torch.Tensor, placement: NDArray[np.float32], codes: NDArray[np.int64], seed: int
    ) -> torch.Tensor:
        """uint8 (C, h, w) -> uint8 (C, img_size, img_size)."""
        if not self.augment:
            return resize_to(image, self.img_size, self.crop_share)
        if self._crop is not None:
            with seeded(seed):
                image = self._crop(image)
        elif not self.in_memory:
            image = resize_to(image, self.img_size)
        place = torch.from_numpy(placement)[None]
        image = crop_and_flip(image[None], place, self.data.crop_padding, self.data.flip)[0]
        image = apply_to_image(image, codes, self.data.randaugment_magnitude)
        return resize_to(image, self.img_size)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body under torch's CPU generator seeded with `seed`, and put its state back.

    Not torch.manual_seed, which would reseed CUDA's generators as well.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)
