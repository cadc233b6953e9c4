"""Augmentations that cannot be combined are refused from the config alone."""

from __future__ import annotations

from typing import Any

import pytest

from vitscale.config.augment import check_augmentation, check_normalisation
from vitscale.config.run import DataConfig
from vitscale.errors import ConfigError


def test_what_runs_image_by_image_is_refused_on_the_device() -> None:
    data = DataConfig(augment_on="device", random_resized_crop=True)
    with pytest.raises(ConfigError, match=r"data\.augment_on=device cannot run data\.random_resized_crop"):
        check_augmentation(data, 3)
    check_augmentation(DataConfig(augment_on="device", randaugment=2, random_erasing=0.25), 3)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"random_resized_crop": True, "crop_padding": 4}, "two ways to crop"),
        ({"randaugment": 2}, r"not model\.in_chans=4"),
        ({"rrc_scale": (0.9, 0.2)}, r"data\.rrc_scale=\[0\.9, 0\.2\]"),
        ({"rrc_scale": (0.0, 1.0)}, r"data\.rrc_scale"),
    ],
)
def test_bad_combinations_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_augmentation(DataConfig(**keys), 4)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [({"mean": (0.5,)}, r"data\.mean has 1 values"), ({"std": (0.2, 0.0, 0.2)}, r"data\.std=\[0\.2, 0\.0, 0\.2\]")],
)
def test_a_normalisation_that_does_not_fit_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_normalisation(DataConfig(**keys), 3)
