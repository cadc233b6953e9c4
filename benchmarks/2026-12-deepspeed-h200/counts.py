"""What one update of the DeepSpeed engine asks of the host, counted on the CPU, where no GPU is needed.

    python counts.py STAGE [KEY=VALUE ...] [--ops] [--python]

One process, ViT-B/16's depth and layers at a tiny width, bf16. Times say nothing here; what is counted carries over to
a GPU: operations that become a kernel launch, reads of a tensor's value by the host (on a GPU the host then waits for
the device), other explicit waits, collectives, and calls of Python functions. Counted per phase of one update, after
three. STAGE -1 is DDP. Stage 0 with deepspeed.bf16.check_grad_overflow=true is DeepSpeed's own wrapper of bf16 weights.
--ops lists the commonest operations of each phase, --python the dearest Python functions by number of calls.
"""

import cProfile
import os
import pstats
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("OMP_NUM_THREADS", "1")

from vitscale.config.decide import decide
from vitscale.config.load import build_config
from vitscale.config.overrides import apply_overrides
from vitscale.data.batch import MicroBatch, UpdateBatch
from vitscale.distributed import joined, seed_everything
from vitscale.engine.build import build_engine
from vitscale.losses import build_loss
from vitscale.models.build import build_model

WARMUP = 3
# Views and allocations: they launch nothing.
FREE = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "detach", "alias", "slice", "select", "narrow",
    "as_strided", "unsqueeze", "squeeze", "expand", "split", "split_with_sizes", "unbind", "chunk", "unflatten",
    "empty", "empty_like", "empty_strided", "new_empty", "_reshape_alias", "is_pinned", "set_", "lift_fresh",
    "new_empty_strided", "resize_", "_has_compatible_shallow_copy_type", "record_stream", "isinf_", "view_as",
}  # fmt: skip


class Counts(TorchDispatchMode):
    """Counts operations by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "other"
        self.ops: dict[str, Counter[str]] = defaultdict(Counter)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.ops[self.phase][f"c10d.{name}" if func.namespace == "c10d" else name] += 1
        return func(*args, **(kwargs or {}))


class Phases:
    """A recorder that tells the counter which phase it is in, and profiles Python only there."""

    def __init__(self, counts: Counts) -> None:
        self.counts, self.on = counts, False
        self.profiles: dict[str, cProfile.Profile] = defaultdict(cProfile.Profile)

    @contextmanager
    def phase(self, name: str) -> Any:
        before, self.counts.phase = self.counts.phase, name
        if self.on:
            self.profiles[name].enable()
        try:
            yield
        finally:
            if self.on:
                self.profiles[name].disable()
            self.counts.phase = before

    def update(self, images: int) -> None:
        """Not measured."""


def config_of(stage: int, overrides: list[str]) -> Any:
    tree: dict[str, Any] = {
        "model": {
            "name": "vit_base_patch16_224", "img_size": 32, "patch_size": 16, "embed_dim": 48, "num_classes": 10,
        },
        "data": {"source": "digits"},
        "optim": {"clip_grad": None, "schedule": "constant"},
        "precision": {"compute": "bf16"},
        "parallel": {"engine": "deepspeed", "zero_stage": stage} if stage >= 0 else {"engine": "ddp"},
        "train": {"global_batch_size": 4, "max_updates": 10},
    }  # fmt: skip
    return build_config(apply_overrides(tree, overrides))


def stand_in_for_cuda(wrapped: bool) -> None:
    """On a GPU torch's AdamW is fused, and DeepSpeed's wrapper of stage 0 has FusedAdam."""
    import vitscale.engine.deepspeed.engine as ours
    import vitscale.engine.native as native
    from vitscale.optim.build import build_optimizer

    def fused(groups: Any, config: Any, **options: Any) -> Any:
        if wrapped:
            return fused_adam_on_the_cpu(groups, config)
        return build_optimizer(groups, config, **{**options, "device_type": "cuda"})

    ours.build_optimizer = native.build_optimizer = fused


def fused_adam_on_the_cpu(groups: Any, config: Any) -> Any:
    """An optimizer that DeepSpeed takes for its FusedAdam: as many launches, one for all flat tensors of a group."""
    from deepspeed.ops.adam import FusedAdam

    class StandIn(FusedAdam):  # type: ignore[misc]
        def __init__(self) -> None:
            inner = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, eps=config.eps, fused=True)
            torch.optim.Optimizer.__init__(self, inner.param_groups, inner.defaults)
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.param_groups, self.inner.state = self.param_groups, self.state
            self.inner.step()

    return StandIn()


def batch_of(images: int, micros: int) -> UpdateBatch:
    part = images // micros
    micro = MicroBatch(torch.randn(part, 3, 32, 32), torch.zeros(part, dtype=torch.long), torch.ones(part))
    return UpdateBatch((micro,) * micros, images, 0, 0)


def main(stage: int, overrides: list[str], *, ops: bool, python: bool) -> None:
    config = config_of(stage, overrides)
    counts = Counts()
    phases = Phases(counts)
    bf16 = config.deepspeed.get("bf16") or {}
    stand_in_for_cuda(wrapped=stage == 0 and bf16.get("check_grad_overflow") is True)
    with joined("cpu", group=True) as world:
        seed_everything(0)
        decisions = decide(config, world_size=1, device_type="cpu")
        waits = watch_waits(counts)
        model = build_model(config.model, 10, 0)
        engine = build_engine(model, build_loss(config.train), config, decisions, world, 10, recorder=phases)
        batch = batch_of(4, decisions.batch.grad_accum_steps)
        for _ in range(WARMUP):
            engine.train_batch(batch)
        waits.clear()
        with counts:
            engine.train_batch(batch)
        seen = Counter(waits)
        phases.on = True
        engine.train_batch(batch)
        report(stage, overrides, counts, seen, phases, ops=ops, python=python)
        engine.close()


def watch_waits(counts: Counts) -> "Counter[str]":
    """Explicit waits through DeepSpeed's accelerator; the CPU's do nothing, so only their number is of use."""
    waits: Counter[str] = Counter()
    import deepspeed

    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator.synchronize = lambda *_: waits.update([counts.phase])
    return waits


def report(
    stage: int, overrides: list[str], counts: Counts, waits: "Counter[str]", phases: Phases, *, ops: bool, python: bool
) -> None:
    print(f"stage {stage} {' '.join(overrides)}")
    print(f"  {'phase':<10} {'launches':>9} {'host reads':>11} {'waits':>6} {'collectives':>12} {'python calls':>13}")
    for name in ("forward", "backward", "optimizer", "other"):
        seen = counts.ops[name]
        reads = seen["_local_scalar_dense"]
        collectives = sum(number for op, number in seen.items() if op.startswith("c10d."))
        launches = sum(seen.values()) - sum(seen[op] for op in FREE) - reads - collectives
        calls = calls_of(phases.profiles.get(name))
        print(f"  {name:<10} {launches:>9} {reads:>11} {waits[name]:>6} {collectives:>12} {calls:>13}")
        if ops:
            print("      ", {op: number for op, number in seen.most_common(14) if op not in FREE})
        if python and name in phases.profiles:
            table = pstats.Stats(phases.profiles[name]).stats  # type: ignore[attr-defined]
            dear = sorted(table.items(), key=lambda item: -item[1][1])[:15]
            for (file, line, function), (_, number, _, total, *_) in dear:
                print(f"      {number:>6} {1e3 * total:>8.2f} ms {'/'.join(file.split('/')[-2:])}:{line} {function}")


def calls_of(profile: cProfile.Profile | None) -> int:
    return 0 if profile is None else int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


if __name__ == "__main__":
    flags = {word for word in sys.argv[1:] if word.startswith("--")}
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(int(words[0]), words[1:], ops="--ops" in flags, python="--python" in flags)
