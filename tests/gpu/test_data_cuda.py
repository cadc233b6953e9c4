"""The loaders on a GPU: the images of the CPU, through pinned memory and the copy stream."""

from typing import Any

import pytest
import torch

from vitscale.config.batch import BatchTriple
from vitscale.config.run import RunConfig
from vitscale.data.loader import EvalLoader, TrainLoader
from vitscale.data.sources import open_splits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
AUGMENT = {"flip": True, "crop_padding": 2, "mixup": 0.8, "cutmix": 1.0}


@pytest.mark.parametrize("data", [{}, AUGMENT, {**AUGMENT, "randaugment": 2, "random_erasing": 0.25, "workers": 2}])
def test_a_gpu_gets_the_images_of_the_cpu(data: dict[str, Any]) -> None:
    source = {"source": "synthetic", "synthetic_size": 150, **data}
    config = RunConfig.model_validate({"data": source, "train": {"epochs": 1}})
    splits = open_splits(config.data, img_size=40, in_chans=3)
    updates = {}
    for name in ("cpu", "cuda"):
        batch = BatchTriple(16, 2, 32)
        options: dict[str, Any] = {"img_size": 48, "mean": splits.mean, "std": splits.std, "device": torch.device(name)}
        loader = TrainLoader(
            splits.train,
            config,
            batch,
            num_classes=10,
            num_draws=4,
            pad_to_micro_batch=True,
            **options,
        )
        updates[name] = []
        for update in loader.iterate(2, 8):
            # Work on the current stream between two updates, as training has, to uncover a missing wait.
            torch.ones(2000, 2000, device=name).matmul(torch.ones(2000, 2000, device=name))
            updates[name].append(update)
        evaluated = [batch.images.cpu() for batch in EvalLoader(splits.val, config, micro_batch_size=16, **options)]
        updates[name + " eval"] = evaluated
    # Two operations of RandAugment can make more than a level of a value that lies on the edge of rounding.
    odd = 0.01 if "randaugment" in data else 0.0
    for on_cpu, on_gpu in zip(updates["cpu"], updates["cuda"], strict=True):
        for a, b in zip(on_cpu.micro_batches, on_gpu.micro_batches, strict=True):
            assert b.images.device.type == "cuda"
            assert ((a.images - b.images.cpu()).abs() > 1e-4).float().mean() <= odd
            for field in ("targets", "weights", "draws"):
                assert torch.equal(getattr(a, field), getattr(b, field).cpu())
    for a, b in zip(updates["cpu eval"], updates["cuda eval"], strict=True):
        assert (a - b).abs().max() < 1e-4


def test_augmenting_on_the_gpu_never_waits_for_it() -> None:
    source = {"source": "synthetic", "synthetic_size": 256, **AUGMENT, "randaugment": 2, "random_erasing": 0.25}
    config = RunConfig.model_validate({"data": source, "train": {"epochs": 1}})
    splits = open_splits(config.data, img_size=32, in_chans=3)
    options: dict[str, Any] = {"img_size": 32, "mean": splits.mean, "std": splits.std, "device": torch.device("cuda")}
    loader = TrainLoader(splits.train, config, BatchTriple(64, 1, 64), num_classes=10, num_draws=4, **options)
    updates = loader.iterate(0, 8)
    next(updates)  # makes RandAugment's table
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(updates)) == 7
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_evaluation_set_stays_on_the_gpu() -> None:
    config = RunConfig.model_validate({"data": {"source": "synthetic", "synthetic_size": 256}, "train": {"epochs": 1}})
    splits = open_splits(config.data, img_size=32, in_chans=3)
    options: dict[str, Any] = {"img_size": 32, "mean": splits.mean, "std": splits.std, "device": torch.device("cuda")}
    loader = EvalLoader(splits.val, config, micro_batch_size=48, pad_to_micro_batch=True, **options)
    first = [batch.images.clone() for batch in loader]
    assert loader._kept is not None
    assert all(torch.equal(a, b.images) for a, b in zip(first, loader, strict=True))
