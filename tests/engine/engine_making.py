"""Tiny engines and updates for tests: the same model, images and targets for any engine and number of ranks.

Used in the test process (engine single, the reference) and in the ranks of tests/dist/engine_worker.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.data.loader import EvalLoader
from vitscale.data.sources import open_splits
from vitscale.distributed import World
from vitscale.engine.base import Engine
from vitscale.engine.build import build_engine
from vitscale.losses import build_loss
from vitscale.models.build import build_model

ALONE = World(0, 1, 0, torch.device("cpu"))
GLOBAL_BATCH, CLASSES, TOTAL_UPDATES = 8, 5, 10
SINGLE: dict[str, Any] = {"engine": "single"}

Tensors = dict[str, torch.Tensor]

# What the ranks and the reference in the test process both run, by name.
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "schedule": "constant"}
GROUPS: dict[str, Any] = {"optim": {**SGD, "weight_decay": 0.5, "layer_decay": 0.5}}
FREEZING: dict[str, Any] = {"optim": SGD, "model": {"freeze": ["patch_embed", "pos_embed", "blocks.0"]}}
LAMB: dict[str, Any] = {"optim": {"name": "lamb", "lr": 0.01, "eps": 1e-6}}
MUON: dict[str, Any] = {"optim": {"name": "muon", "lr": 0.01, "eps": 1e-6}}
BF16: dict[str, Any] = {"compute": "bf16"}
AUTOCAST: dict[str, Any] = {"compute": "bf16", "params": "fp32"}
FP16: dict[str, Any] = {"compute": "fp16"}


def config_of(parallel: dict[str, Any], **sections: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "model": {
            "name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": CLASSES,
            "embed_dim": 32, "depth": 2, "num_heads": 2, "global_pool": "avg",
        },
        "optim": {"lr": 1e-3, "eps": 1e-6, "schedule": "constant"},
        "parallel": parallel,
        "train": {"global_batch_size": GLOBAL_BATCH, "max_updates": TOTAL_UPDATES},
    }  # fmt: skip
    if parallel.get("zero_stage") == 3:  # else the tensors of a tiny model stay whole, and nothing is tested
        tree["deepspeed"] = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return build_config(tree)


def model_of(config: RunConfig) -> nn.Module:
    assert config.model.num_classes is not None
    return build_model(config.model, config.model.num_classes, config.train.seed)


def engine_of(config: RunConfig, world: World = ALONE, **options: Any) -> Engine:
    decisions = decide(config, world_size=world.world_size, device_type="cpu")
    return build_engine(model_of(config), build_loss(config.train), config, decisions, world, TOTAL_UPDATES, **options)


def images_of(update: int, count: int = GLOBAL_BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (B, 1, 8, 8) and targets that a model can learn a little of."""
    generator = torch.Generator().manual_seed(100 + update)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    return torch.randn(count, 1, 8, 8, generator=generator) + targets.view(-1, 1, 1, 1), targets


def batch_of(update: int, world: World = ALONE, accum: int = 1, loss_weight: float = 1.0) -> UpdateBatch:
    """This rank's share of update number `update`, in `accum` micro-steps."""
    images, targets = images_of(update)
    mine = slice(world.rank * GLOBAL_BATCH // world.world_size, (world.rank + 1) * GLOBAL_BATCH // world.world_size)
    parts = zip(images[mine].chunk(accum), targets[mine].chunk(accum), strict=True)
    micros = tuple(MicroBatch(i, t, torch.full((len(t),), loss_weight)) for i, t in parts)
    return UpdateBatch(micros, GLOBAL_BATCH, update, 0)


def run_updates(engine: Engine, world: World = ALONE, updates: int = 3, accum: int = 1) -> Iterator[float]:
    """Run updates; yields each one's mean loss over all ranks."""
    for update in range(engine.update, engine.update + updates):
        output = engine.train_batch(batch_of(update, world, accum))
        yield world.sum(output.loss.clone()).item()


def reference(updates: int = 3, accum: int = 1, **sections: Any) -> tuple[list[float], Tensors]:
    """Losses and final weights of engine single in this process."""
    engine = engine_of(config_of(SINGLE, **sections))
    losses = list(run_updates(engine, updates=updates, accum=accum))
    return losses, engine.gathered_parameters()


def eval_loader(world: World = ALONE) -> EvalLoader:
    """37 images of digits' validation split: a number that divides by nothing."""
    config = config_of({}, data={"val_limit": 37}, model={"num_classes": 10})
    splits = open_splits(config.data, img_size=8, in_chans=1, num_classes=10)
    return EvalLoader(
        splits.val,
        config,
        micro_batch_size=8,
        img_size=8,
        mean=splits.mean,
        std=splits.std,
        rank=world.rank,
        world_size=world.world_size,
    )


def true_gradient(config: RunConfig, update: int = 0) -> Tensors:
    """The gradient of an update's mean loss at the initial weights, by plain autograd."""
    model = model_of(config)
    images, targets = images_of(update)
    F.cross_entropy(model(images), targets).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def norm_of(tensors: Tensors) -> float:
    return float(torch.stack([t.double().norm() for t in tensors.values()]).norm())


def distance(one: Tensors, two: Tensors) -> float:
    """The largest relative difference of a tensor; tensors that hardly differ from 0 are judged by the largest one."""
    assert one.keys() == two.keys(), one.keys() ^ two.keys()
    floor = max(float(t.double().norm()) for t in two.values()) * 1e-3
    return max(
        float((one[name].double() - two[name].double()).norm()) / max(float(two[name].double().norm()), floor)
        for name in two
    )
