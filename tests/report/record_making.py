"""Records of a simulated machine, for tests that go the whole way from records.jsonl to a report."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

from vitscale.results.record import Attribution, Identity, Learning, Measurement, Point, Record
from vitscale.results.records import write_records

ENGINES = {"ddp": 1.0, "fsdp2": 0.97, "deepspeed:0": 0.8, "deepspeed:1": 0.78, "deepspeed:3": 0.5}
ENVIRONMENT = {"packages": {"torch": "2.14.1"}, "devices": [{"name": "H200"}], "driver": "580.12"}


def study(
    engines: int = 5, micros: tuple[int, ...] = (8, 16, 32, 64, 128), sizes: tuple[int, ...] = (1, 2, 4, 8, 16),
    repeats: int = 4, updates: int = 200, noise: float = 0.004, name: str = "simulated",
) -> list[Record]:  # fmt: skip
    """One record for each engine, micro_batch_size, world size and repeat."""
    luck = random.Random(0)
    grid = product(list(ENGINES)[:engines], micros, sizes, range(repeats))
    return [_record(*point, updates, luck, noise, name) for point in grid]


def _record(
    engine: str, micro: int, size: int, repeat: int, updates: int, luck: random.Random, noise: float, name: str
) -> Record:
    kind, _, stage = engine.partition(":")
    batch = micro * size
    step = (
        batch / (900 * ENGINES[engine] * size * micro / (micro + 20) / (1 + 0.02 * (size - 1))) * luck.gauss(1, noise)
    )
    axes = {"engine": engine, "micro_batch_size": micro, "world_size": size}
    points = tuple(
        Point(update=u, images=u * batch, seconds=u * step, accuracy=0.7 - 0.6 / (1 + u / 40))
        for u in range(0, 201, 20)
    )
    shares = {
        "data_wait": 0.02,
        "forward": 0.3,
        "backward": 0.5,
        "exposed_comm": 0.08,
        "optimizer": 0.08,
        "other": 0.02,
    }
    return Record(
        study=name,
        mode="strong",
        fixed="per_device",
        case=" ".join(f"{key}={value}" for key, value in axes.items()),
        axes=axes,
        repeat=repeat,
        identity=Identity(
            model="vit_base_patch16_224", img_size=224, engine=kind, zero_stage=int(stage) if stage else None,
            world_size=size, device_names=("H200",) * size, device_type="cuda", precision="bf16/bf16/bf16",
            compile=False, micro_batch_size=micro, grad_accum_steps=1, global_batch_size=batch,
            data_source="synthetic", lr=1e-3,
        ),
        measurement=Measurement(
            warmup_step_time_s=(3 * step,) * 5,
            step_time_s=tuple(step * luck.lognormvariate(0, 0.02) for _ in range(updates)),
            images=(batch,) * updates,
            losses=(1.0,) * updates,
            peak_allocated_bytes=(int((2 + 0.1 * micro) * 2**30),) * size,
            attribution=Attribution(updates=10, seconds={phase: share * step for phase, share in shares.items()}),
        ),
        learning=Learning(split="val", points=points, final_accuracy=points[-1].accuracy),
        environment=ENVIRONMENT,
    )  # fmt: skip


def write_study(folder: Path, records: list[Record]) -> Path:
    """A study's folder with these records."""
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / "records.jsonl", records)
    return folder
