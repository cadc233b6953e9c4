"""Small data sets on disk and in memory, made by the tests that use them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitscale.config.batch import BatchTriple
from vitscale.config.run import DataConfig, RunConfig, TrainConfig
from vitscale.data.images import ImageSet, MemoryImages
from vitscale.data.loader import TrainLoader


def memory_images(count: int, height: int = 8, width: int = 8, num_classes: int = 5, seed: int = 0) -> MemoryImages:
    """Random RGB images; pixel (0, 0, 0) is not special."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    return MemoryImages(pixels, np.arange(count) % num_classes, "made")


class LazyImages:
    """The same images, but read one by one, as files are."""

    pixels = None

    def __init__(self, images: MemoryImages) -> None:
        self.images = images
        self.labels = images.labels

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> torch.Tensor:
        """One image."""
        return self.images.read(index)

    def name(self, index: int) -> str:
        """Its name."""
        return self.images.name(index)

    def subset(self, indices: np.ndarray) -> "LazyImages":
        """Some of them."""
        return LazyImages(self.images.subset(indices))


def write_image_folder(
    root: Path, counts: dict[str, int], size: tuple[int, int] = (12, 10), suffix: str = ".png", seed: int = 0
) -> Path:
    """root/CLASS/i.png of random pixels; size is (width, height)."""
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}{suffix}")
    return root


def run_config(train: dict[str, object] | None = None, **data: object) -> RunConfig:
    """A config with these data and train keys."""
    return RunConfig(
        data=DataConfig.model_validate({"workers": 0, **data}),
        train=TrainConfig.model_validate({"epochs": 1, **(train or {})}),
    )


def train_loader(
    images: ImageSet,
    config: RunConfig,
    *,
    micro: int = 4,
    accum: int = 1,
    rank: int = 0,
    world_size: int = 1,
    img_size: int = 8,
    **rest: object,
) -> TrainLoader:
    """A loader for 5 classes of RGB images, with mean 0.5 and std 0.25."""
    batch = BatchTriple(micro, accum, micro * accum * world_size)
    options: dict[str, object] = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "num_classes": 5, **rest}
    return TrainLoader(images, config, batch, img_size=img_size, rank=rank, world_size=world_size, **options)  # type: ignore[arg-type]
