"""Which augmentations cannot be combined, and which normalisation cannot be used. Torch-free: refused before the start.

In: a DataConfig and the model's channels. Out: ConfigError, or nothing. What the transforms do is data.transforms'.
"""

from __future__ import annotations

from vitscale.config.run import DataConfig
from vitscale.errors import ConfigError

_PER_IMAGE = ("random_resized_crop",)


def per_image_transforms(data: DataConfig) -> list[str]:
    """The keys of those transforms that are on and run image by image, in workers."""
    return [key for key in _PER_IMAGE if getattr(data, key)]


def check_augmentation(data: DataConfig, in_chans: int) -> None:
    """Refuse what would be ignored or cannot run."""
    per_image = per_image_transforms(data)
    if data.augment_on == "device" and per_image:
        raise ConfigError(
            f"data.augment_on=device cannot run data.{per_image[0]}, which works image by image; "
            f"set data.augment_on=workers or auto, or turn data.{per_image[0]} off"
        )
    if data.random_resized_crop and data.crop_padding:
        raise ConfigError("data.random_resized_crop and data.crop_padding are two ways to crop; set only one of them")
    if data.randaugment and in_chans not in (1, 3):
        raise ConfigError(f"data.randaugment works on 1 or 3 channels, not model.in_chans={in_chans}; set it to 0")
    low, high = data.rrc_scale
    if not 0 < low <= high <= 1:
        raise ConfigError(f"data.rrc_scale={list(data.rrc_scale)} must be two ascending shares of the area in (0, 1]")


def check_normalisation(data: DataConfig, in_chans: int) -> None:
    """Refuse a mean or std that does not fit the channels."""
    for key, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and len(values) != in_chans:
            raise ConfigError(
                f"data.{key} has {len(values)} values but model.in_chans={in_chans}; give one per channel"
            )
    if data.std is not None and min(data.std) <= 0:
        raise ConfigError(f"data.std={list(data.std)} must be above 0 in every channel")
