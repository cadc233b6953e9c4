"""Times an update of the DeepSpeed engine, one change at a time, beside DDP: ViT-B/16, bf16, one GPU, random images.

    python steps.py OUT [--compile] [--stages ddp 0 1 2 3] [--seconds 40] [--tiny]

A fresh process per stage (DeepSpeed changes torch for its whole process), in it one engine per change, all alive;
windows of updates of each by turns, there and back again (A B C C B A ...), so that a drift of the host meets all
alike. Milliseconds are of CUDA events: of the window, and of each phase in it. OUT/records.jsonl gets a row per change
and batch with the raw windows; OUT/profiles.txt what the profiler says of two updates of the first and the last change:
the fifteen dearest host functions, and how long the device had nothing to do. --compile measures vitscale's defaults
compiled instead. --seconds bounds each process's rounds; what was measured until then is kept. --tiny: on the CPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.overrides import apply_overrides
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import World, joined, seed_everything
from vitscale.engine.base import Engine
from vitscale.engine.build import build_engine
from vitscale.losses import build_loss
from vitscale.measure.environment import describe
from vitscale.models.build import build_model

ROUNDS, WARMUP = 4, 5
WINDOW = {64: 6, 256: 4}  # updates
TIMER = "deepspeed.timers.throughput.enabled=true"
CHECK = "deepspeed.bf16.check_grad_overflow=true"
NORM = "deepspeed.zero_optimization.compute_grad_norm=true"
COPIES = "deepspeed.zero_optimization.contiguous_gradients=true"
LAYERS = "deepspeed.zero_optimization.leaf_module.classes=[]"
WHOLE = "deepspeed.zero_optimization.stage3_param_persistence_threshold=100000000"
ALONE = "deepspeed.zero_optimization.overlap_comm=false"
# Each line leaves out one thing of DeepSpeed's own defaults; the last is vitscale's default.
CHANGES: dict[str, list[tuple[str, list[str]]]] = {
    "ddp": [("ddp", [])],
    "0": [("DeepSpeed's defaults", [TIMER, CHECK]), ("- timer", [CHECK]), ("- wrapper (vitscale)", [])],
    "1": [
        ("DeepSpeed's defaults", [TIMER, CHECK, NORM, COPIES]),
        ("- timer", [CHECK, NORM, COPIES]),
        ("- overflow check", [NORM, COPIES]),
        ("- norm", [COPIES]),
        ("- bucket copies (vitscale)", []),
    ],
    "3": [
        ("DeepSpeed's defaults", [TIMER, COPIES, LAYERS]),
        ("- timer", [COPIES, LAYERS]),
        ("- bucket copies", [LAYERS]),
        ("- hooks in blocks (vitscale)", []),
        ("vitscale - overlap", [ALONE]),
        ("vitscale - partition of weights", [WHOLE]),
    ],
}
CHANGES["2"] = CHANGES["1"]


class Events:
    """A recorder that marks the phases of each update with events of the device."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.marks: list[tuple[str, Any, Any]] = []

    def now(self) -> Any:
        """An event that is recorded, or the clock."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Milliseconds."""
        return float(begin.elapsed_time(end)) if self.on_gpu else 1e3 * (end - begin)

    @contextmanager
    def phase(self, name: str) -> Any:
        """Mark both edges; the profiler sees the phase too."""
        begin = self.now()
        with torch.profiler.record_function(f"phase:{name}"):
            yield
        self.marks.append((name, begin, self.now()))

    def alive(self) -> None:
        """Nothing."""

    def update(self, images: int) -> None:
        """Nothing."""

    def taken(self) -> dict[str, float]:
        """Milliseconds by phase since the last call; the device must have finished."""
        spent: dict[str, float] = defaultdict(float)
        for name, begin, end in self.marks:
            spent[name] += self.between(begin, end)
        self.marks.clear()
        return dict(spent)


def config_of(stage: str, overrides: list[str], *, tiny: bool, compiled: bool) -> Any:
    size = {"img_size": 32, "embed_dim": 48, "depth": 2} if tiny else {"img_size": 224}
    fast = {"compile": compiled, "cuda_graph": False, "attention": "default"}
    parallel: dict[str, Any] = {"engine": "ddp"}
    if stage != "ddp":
        parallel = {"engine": "deepspeed", "zero_stage": int(stage)}
    tree: dict[str, Any] = {
        "model": {"name": "vit_base_patch16_224", "num_classes": 1000, **size},
        "data": {"source": "synthetic"},
        "optim": {"schedule": "constant", "lr": 1e-4},
        "precision": {"compute": "bf16"},
        "parallel": parallel,
        "performance": fast,
        "train": {"global_batch_size": 64, "max_updates": 10**6},
    }
    return build_config(apply_overrides(tree, overrides))


def engine_of(config: Any, world: World, events: Events) -> Engine:
    seed_everything(0)
    decisions = decide(config, world_size=1, device_type=world.device.type)
    model = build_model(config.model, 1000, 0)
    return build_engine(model, build_loss(config.train), config, decisions, world, 10**6, recorder=events)


def batch_of(images: int, size: int, device: torch.device) -> UpdateBatch:
    pixels = torch.randn(images, 3, size, size, device=device)
    targets = torch.randint(1000, (images,), device=device)
    return UpdateBatch((MicroBatch(pixels, targets, torch.ones(images, device=device)),), images, 0, 0)


def settle(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def window(engine: Engine, batch: UpdateBatch, updates: int, events: Events, world: World) -> dict[str, float]:
    """Milliseconds per update of one window, whole and by phase."""
    engine.train_batch(batch)
    settle(world)
    events.marks.clear()
    begin = events.now()
    for _ in range(updates):
        engine.train_batch(batch)
    end = events.now()
    settle(world)
    whole = events.between(begin, end)
    spent = {"update": whole, **events.taken()}
    return {name: round(milliseconds / updates, 3) for name, milliseconds in spent.items()}


def child(stage: str, out: Path, *, compiled: bool, tiny: bool, seconds: float) -> None:
    """Measure all changes of one stage in this process."""
    deadline = time.monotonic() + seconds
    warnings.simplefilter("ignore")
    with joined("cpu" if tiny else "cuda", group=True) as world:
        environment = describe()
        events = Events(not tiny)
        changes = dict(CHANGES[stage])
        if compiled:
            changes = {ours(changes): changes[ours(changes)]}
        engines = {
            name: engine_of(config_of(stage, keys, tiny=tiny, compiled=compiled), world, events)
            for name, keys in changes.items()
        }
        for images in (4,) if tiny else (64, 256):
            batch = batch_of(images, 32 if tiny else 224, world.device)
            windows = measure(engines, batch, WINDOW.get(images, 2), events, world, deadline)
            with (out / "records.jsonl").open("a") as lines:
                for name, found in windows.items():
                    row = {"stage": stage, "change": name, "compile": compiled, "batch": images, "windows": found}
                    lines.write(json.dumps({**row, "environment": environment}) + "\n")
                    say(stage, name, images, found)
            if images != 256 and time.monotonic() < deadline:
                for name in dict.fromkeys((next(iter(engines)), ours(engines))):
                    profiled(f"stage {stage} {name} compile={compiled} batch {images}", engines[name], batch, out)
        for engine in engines.values():
            engine.close()


def ours(names: Iterable[str]) -> str:
    """The change that is vitscale's default."""
    return next(name for name in names if name == "ddp" or name.endswith("(vitscale)"))


def measure(
    engines: dict[str, Engine], batch: UpdateBatch, updates: int, events: Events, world: World, deadline: float
) -> dict[str, list[dict[str, float]]]:
    """Windows by turns, there and back again, until the rounds or the time are over."""
    for engine in engines.values():
        for _ in range(WARMUP):
            engine.train_batch(batch)
    windows: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for turn in range(ROUNDS):
        if time.monotonic() > deadline and turn:
            break
        for name in list(engines) if turn % 2 == 0 else reversed(list(engines)):
            windows[name].append(window(engines[name], batch, updates, events, world))
    return windows


def say(stage: str, name: str, images: int, windows: list[dict[str, float]]) -> None:
    middle = {key: statistics.median(w.get(key, 0.0) for w in windows) for key in windows[0]}
    whole = [w["update"] for w in windows]
    phases = ", ".join(f"{key} {value:.1f}" for key, value in middle.items() if key != "update")
    rate = 1e3 * images / middle["update"]
    spread = f"{min(whole):.1f} to {max(whole):.1f}"
    print(f"{stage:>3} {name:<34} b{images:<4} {middle['update']:7.2f} ms ({spread}) {rate:7.0f} images/s  {phases}")


def profiled(title: str, engine: Engine, batch: UpdateBatch, out: Path) -> None:
    """The dearest host functions of two updates, and the device's idle time by phase."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        for _ in range(2):
            engine.train_batch(batch)
        if on_gpu:
            torch.cuda.synchronize()
    table = seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=60)
    with (out / "profiles.txt").open("a") as text:
        text.write(f"\n{title}\n{gaps(seen) if on_gpu else ''}\n{table}\n")


def gaps(seen: Any) -> str:
    """How long no kernel ran, and in how many pieces, between the first and the last kernel."""
    busy = sorted(
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    )
    if not busy:
        return "no kernels"
    idle, pieces, until = 0.0, 0, busy[0][0]
    for begin, end in busy:
        if begin > until:
            idle, pieces = idle + begin - until, pieces + 1
        until = max(until, end)
    span = until - busy[0][0]
    counts = f"in {pieces // 2} gaps, {len(busy) // 2} kernels"
    return f"device idle {idle / 2e3:.2f} of {span / 2e3:.2f} ms per update, {counts}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--stages", nargs="+", default=["ddp", "0", "1", "2", "3"])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--child")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.child:
        child(asked.child, asked.out, compiled=asked.compile, tiny=asked.tiny, seconds=asked.seconds)
        return
    for stage in asked.stages:
        command = [sys.executable, __file__, *sys.argv[1:], "--child", stage]
        begin = time.monotonic()
        try:
            code = subprocess.run(command, timeout=2 * asked.seconds + 60).returncode
        except subprocess.TimeoutExpired:
            code = 124
        print(f"stage {stage}: exit code {code} after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
