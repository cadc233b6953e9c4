"""Checks of one engine, as one rank of a group: `python -m engine_worker FOLDER`.

In: payload.json with the `parallel` section and the names of checks. Out (rank 0): each check's figures, and weights
that the test compares with engine single's, as safetensors. A check only measures; the test judges, so that no rank
fails alone and leaves the others waiting.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from engine_making import (
    AUTOCAST,
    BF16,
    FP16,
    FREEZING,
    GROUPS,
    LAMB,
    MUON,
    SGD,
    Tensors,
    batch_of,
    config_of,
    distance,
    engine_of,
    eval_loader,
    images_of,
    model_of,
    norm_of,
    run_updates,
    true_gradient,
)
from engine_speed import compiled, quiet
from safetensors.torch import save_file

from vitscale.distributed import StopRequest, World, joined
from vitscale.engine.base import Engine
from vitscale.errors import DataError, VitscaleError
from vitscale.evaluate import evaluate
from vitscale.launch.child import run_rank
from vitscale.study.case import load_payload, save_result

Figures = dict[str, Any]
WEIGHT = "blocks.0.mlp.fc1.weight"


class Bench:
    """What every check is given."""

    def __init__(self, world: World, parallel: dict[str, Any], folder: Path) -> None:
        self.world, self.parallel, self.folder = world, parallel, folder

    def engine(self, *, resume_from: Path | None = None, **sections: Any) -> Engine:
        return engine_of(config_of(self.parallel, **sections), self.world, resume_from=resume_from)

    def run(self, engine: Engine, updates: int = 3, accum: int = 1) -> list[float]:
        return list(run_updates(engine, self.world, updates, accum))

    def keep(self, name: str, tensors: Tensors) -> None:
        if self.world.main:
            save_file({key: value.contiguous() for key, value in tensors.items()}, self.folder / f"{name}.safetensors")

    def shared_folder(self, name: str) -> Path:
        path = self.folder / name
        if self.world.main:
            path.mkdir()
        self.world.barrier()
        return path


def logits_of(engine: Engine, images: torch.Tensor, *, ema: bool = False) -> torch.Tensor:
    with engine.evaluating(ema=ema):
        return engine.eval_forward(images)


def ema(bench: Bench, **sections: Any) -> Figures:
    """The average by hand from gathered weights; in place while evaluating, and nothing left of it afterwards."""
    engine = bench.engine(optim={"lr": 1e-2, "ema_decay": 0.15}, **sections)
    average = engine.gathered_parameters()
    for update in range(4):
        engine.train_batch(batch_of(update, bench.world, accum=2))
        decay = min(0.15, (1 + update) / (10 + update))
        weights = engine.gathered_parameters()
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
    images = images_of(9)[0]
    weights, found = engine.gathered_parameters(), engine.gathered_parameters(ema=True)
    current = logits_of(engine, images)
    averaged = logits_of(engine, images, ema=True)
    again = logits_of(engine, images)
    figures = {"restored": torch.equal(current, again), "differ": float((averaged - current).abs().max())}
    after = engine.gathered_parameters()
    still = engine.gathered_parameters(ema=True)
    if bench.world.main:
        figures |= {"hand": distance(found, average), "dtypes": sorted({str(t.dtype) for t in found.values()})}
        figures |= {"weights": distance(after, weights), "average": distance(still, found)}
        plain = model_of(config_of(bench.parallel)).eval()
        with torch.no_grad():
            for key, values, logits in (("in_place", found, averaged), ("plain", weights, current)):
                plain.load_state_dict(values)
                figures[key] = float((plain(images) - logits).abs().max())
    engine.close()
    # The masters must not have moved either: the next update is the one of an engine that never evaluated.
    other = bench.engine(optim={"lr": 1e-2, "ema_decay": 0.15}, **sections)
    figures["next"] = _next_loss(bench, other)
    other.close()
    return figures


def _next_loss(bench: Bench, engine: Engine) -> list[list[float]]:
    """Losses with an evaluation of the average after every update, and without."""
    with_evaluation = []
    for _ in range(3):
        with_evaluation += bench.run(engine, 1)
        logits_of(engine, images_of(9)[0], ema=True)
    plain = bench.engine(optim={"lr": 1e-2, "ema_decay": 0.15}, **_sections_of(engine))
    without = bench.run(plain, 3)
    plain.close()
    return [with_evaluation, without]


def _sections_of(engine: Any) -> dict[str, Any]:
    asked = engine.config.precision
    return {"precision": asked.model_dump()}


def ema_bf16(bench: Bench) -> Figures:
    return ema(bench, precision=BF16)


def masters(bench: Bench) -> Figures:
    """bf16 weights whose masters move by less than bf16 can say."""
    engine = bench.engine(precision=BF16, optim={"lr": 1e-5, "weight_decay": 0.0})
    bench.run(engine, 1)
    first = engine.gathered_parameters()
    bench.run(engine, 2)
    second = engine.gathered_parameters()
    engine.close()
    if not bench.world.main:
        return {}
    moved = (second[WEIGHT] - first[WEIGHT]).abs()
    return {
        "dtype": str(second[WEIGHT].dtype),
        "largest": float(moved.max()),
        "moved": float((moved > 0).float().mean()),
        "visible": float((first[WEIGHT].bfloat16() != second[WEIGHT].bfloat16()).float().mean()),
    }


def clipping(bench: Bench) -> Figures:
    """The norm that is reported, and how far a step of learning rate 1 goes."""
    figures: Figures = {"true": norm_of(true_gradient(config_of(bench.parallel)))}
    for name, limit in (("off", None), ("loose", 1e9), ("tight", 1e-2)):
        optim = {**SGD, "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "clip_grad": limit}
        engine = bench.engine(optim=optim)
        before = engine.gathered_parameters()
        output = engine.train_batch(batch_of(0, bench.world, accum=2))
        after = engine.gathered_parameters()
        norm = None if output.grad_norm is None else float(output.grad_norm)
        moved = norm_of({key: after[key] - before[key] for key in after}) if bench.world.main else 0.0
        figures[name] = {"norms": bench.world.gather(norm), "moved": moved}
        engine.close()
    return figures


def checkpointing(bench: Bench) -> Figures:
    """Recomputed activations, with dropout in them."""
    results = []
    for on in (False, True):
        engine = bench.engine(optim=SGD, model={"dropout": 0.2}, performance={"checkpointing": on})
        results.append((bench.run(engine), engine.gathered_parameters()))
        engine.close()
    (plain, one), (recomputed, two) = results
    return {"losses": [plain, recomputed], "weights": distance(two, one) if one else 0.0}


def groups(bench: Bench) -> Figures:
    """Layer-wise decay, and weight decay of some parameters only; judged against engine single."""
    return _against_single(bench, "groups", GROUPS)


def freezing(bench: Bench) -> Figures:
    return _against_single(bench, "freezing", FREEZING)


def lamb(bench: Bench) -> Figures:
    return _against_single(bench, "lamb", LAMB) | _resumed(bench, "lamb", LAMB)


def muon(bench: Bench) -> Figures:
    return _against_single(bench, "muon", MUON) | _resumed(bench, "muon", MUON)


def _against_single(bench: Bench, name: str, sections: dict[str, Any]) -> Figures:
    engine = bench.engine(**sections)
    losses = bench.run(engine, accum=2)
    bench.keep(name, engine.gathered_parameters())
    state = engine.gathered_optimizer_state()
    local = [p.detach().double().sum().item() for p in engine.module.parameters()]  # the same on all ranks if whole
    engine.close()
    return {"losses": losses, "states": sorted(state), "local": bench.world.gather(local)}


def _resumed(bench: Bench, name: str, sections: dict[str, Any]) -> Figures:
    """Losses that follow a save: of the engine that goes on, and of one that loads."""
    folder = bench.shared_folder(f"{name}-saved")
    engine = bench.engine(**sections)
    bench.run(engine)
    engine.save(folder)
    went_on = bench.run(engine)
    engine.close()
    bench.world.barrier()
    other = bench.engine(resume_from=folder, **sections)
    other.load(folder)
    update = other.update
    loaded = bench.run(other)
    other.close()
    return {"went_on": went_on, "loaded": loaded, "update": update}


def resumed_bf16(bench: Bench) -> Figures:
    """AdamW on fp32 masters: what bf16 weights do not say must be in the checkpoint too."""
    return _resumed(bench, "resumed_bf16", {"precision": BF16, "optim": {"lr": 1e-2, "clip_grad": 0.1}})


def freezing_bf16(bench: Bench) -> Figures:
    """What frozen weights become in a checkpoint, also after an evaluation."""
    engine = bench.engine(precision=BF16, **FREEZING)
    bench.run(engine)
    logits_of(engine, images_of(9)[0])
    full = engine.gathered_parameters()
    engine.close()
    start = model_of(config_of(bench.parallel)).state_dict()
    frozen = [name for name in full if name.startswith(("patch_embed.", "pos_embed", "blocks.0."))]
    return {
        "dtypes": sorted({str(t.dtype) for t in full.values()}),
        "exact": all(torch.equal(full[name], start[name]) for name in frozen),
        "rounded": all(torch.equal(full[name], start[name].bfloat16().float()) for name in frozen),
        "trained_too": any(torch.equal(full[name], start[name]) for name in full.keys() - set(frozen)),
    }


def dropout(bench: Bench) -> Figures:
    """This rank's losses on ONE batch that all ranks share: by (seed, update, rank) and nothing else."""
    found = {}
    batch = batch_of(0)
    for name, update, noise in (("first", 0, 1), ("same", 0, 2), ("later", 1, 1)):
        engine = bench.engine(model={"dropout": 0.3})
        engine.update = update
        torch.manual_seed(noise)
        found[name] = bench.world.gather(engine.train_batch(batch).loss.item())
        engine.close()
    return found


def autocast(bench: Bench) -> Figures:
    engine: Any = bench.engine(precision=AUTOCAST, optim=SGD)
    outputs: set[str] = set()
    engine._plain.blocks[0].mlp.fc1.register_forward_hook(lambda _m, _i, output: outputs.add(str(output.dtype)))
    losses = bench.run(engine)
    weights = sorted({str(t.dtype) for t in engine.module.parameters()})
    bench.keep("autocast", engine.gathered_parameters())
    engine.close()
    return {"outputs": sorted(outputs), "weights": weights, "losses": losses}


def fp16(bench: Bench) -> Figures:
    """The samples of rank 1 alone overflow: all ranks skip the step, and count it apart."""
    folder = bench.shared_folder("fp16-saved")
    sections: dict[str, Any] = {"precision": FP16, "optim": {**SGD, "clip_grad": 1.0}}
    engine: Any = bench.engine(**sections)
    before = engine.gathered_parameters()
    scales = [engine._scaler.get_scale()]
    bad = engine.train_batch(batch_of(0, bench.world, loss_weight=1e30 if bench.world.rank == 1 else 1.0))
    after = engine.gathered_parameters()
    scales.append(engine._scaler.get_scale())
    updates = [engine.update]
    good = engine.train_batch(batch_of(0, bench.world, accum=2))
    updates.append(engine.update)
    bench.keep("fp16", engine.gathered_parameters())
    engine.save(folder)
    bench.world.barrier()
    other: Any = bench.engine(**sections)
    other.load(folder)
    scales.append(other._scaler.get_scale())
    applied = [bad.applied, good.applied]
    return {
        "ranks": bench.world.gather([applied, updates, scales]),
        "kept": distance(after, before) if bench.world.main else 0.0,
    }


def momentum(bench: Bench) -> Figures:
    """SGD's momentum at the same number of processes, and refused at another."""
    sections = {"optim": SGD}
    figures = _resumed(bench, "momentum", sections)
    folder = bench.folder / "momentum-saved"
    bench.world.barrier()
    if bench.world.main:
        extra = json.loads((folder / "engine.json").read_text())
        (folder / "engine.json").write_text(json.dumps({**extra, "world_size": 4}))
    bench.world.barrier()
    engine = bench.engine(**sections)
    try:
        engine.load(folder)
        sentence = "loaded"
    except VitscaleError as error:
        sentence = f"{type(error).__name__}: {error}"
    engine.close()
    return figures | {"sentences": bench.world.gather(sentence)}


def changed(bench: Bench) -> Figures:
    """A run that goes on with another clip_grad and weight decay: how far its next step of learning rate 1 goes."""
    folder = bench.shared_folder("changed-saved")
    optim = {**SGD, "lr": 1.0, "momentum": 0.0}
    engine = bench.engine(optim={**optim, "weight_decay": 0.5})
    bench.run(engine, 1)
    engine.save(folder)
    engine.close()
    bench.world.barrier()
    other = bench.engine(optim={**optim, "weight_decay": 0.0, "clip_grad": 1e-2}, resume_from=folder)
    other.load(folder)
    before = other.gathered_parameters()
    bench.run(other, 1)
    after = other.gathered_parameters()
    other.close()
    return {"moved": norm_of({key: after[key] - before[key] for key in after}) if bench.world.main else 0.0}


def other_layout(bench: Bench) -> Figures:
    """A run in fp32 that would go on with bf16 weights, whose states DeepSpeed keeps in other files."""
    folder = bench.shared_folder("layout-saved")
    engine = bench.engine(optim=SGD)
    bench.run(engine, 1)
    engine.save(folder)
    engine.close()
    bench.world.barrier()
    other = bench.engine(optim=SGD, precision=BF16)
    try:
        other.load(folder)
        sentence = "loaded"
    except VitscaleError as error:
        sentence = f"{type(error).__name__}: {error}"
    other.close()
    return {"sentences": bench.world.gather(sentence)}


def counting(bench: Bench) -> Figures:
    """An evaluation over the ranks, of a number of samples that divides by nothing."""
    engine = bench.engine(model={"num_classes": 10})
    loader = eval_loader(bench.world)
    with engine.evaluating():
        result = evaluate(engine.eval_forward, loader, 10, reduce=bench.world.sum)
    assert result is not None
    engine.close()
    return bench.world.gather(result.as_dict())  # type: ignore[return-value]


def world(bench: Bench) -> Figures:
    """What a World promises to all ranks."""
    here = bench.world

    def refuse() -> None:
        raise DataError("only rank 0 looked")

    try:
        here.on_main(refuse)
        heard = "nothing"
    except VitscaleError as error:
        heard = f"{type(error).__name__}: {error}"

    def crash() -> None:
        raise ZeroDivisionError("nobody thought of it")

    try:
        here.on_main(crash)
        crashed = "nothing"
    except Exception as error:
        crashed = f"{type(error).__name__}: {error}"
    figures: Figures = {
        "heard": here.gather(heard),
        "crashed": here.gather(crashed),
        "on_main": here.gather(here.on_main(lambda: [os.getpid()])),
        "any": here.gather([here.any(here.rank == 1), here.any(False)]),
        "broadcast": here.gather(here.broadcast({"rank": here.rank})),
        "sum": here.gather(here.sum(torch.tensor([1.0 + here.rank])).item()),
        "main": here.gather(here.main),
    }
    return figures


def stopping(bench: Bench) -> Figures:
    """SIGTERM reaches rank 1 alone, and rank 0 two polls later; all ranks hear of it at the same poll."""
    stop = StopRequest(bench.world)
    answers = []
    for number in range(8):
        if (bench.world.rank, number) in ((1, 3), (0, 5)):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
        answers.append(stop.poll())
    stop.close()
    return {"answers": bench.world.gather(answers), "given_back": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL}


CHECKS = {
    check.__name__: check
    for check in (
        ema, ema_bf16, masters, clipping, checkpointing, groups, freezing, freezing_bf16, lamb, muon, dropout, autocast,
        fp16, momentum, changed, other_layout, counting, world, stopping, quiet, compiled,
        resumed_bf16,
    )
}  # fmt: skip


def main(folder: Path) -> int:
    payload = load_payload(folder)
    figures: dict[str, Any] = {}
    with joined("cpu", group=True) as here:
        bench = Bench(here, payload["parallel"], folder)
        for name in payload["checks"]:
            start = time.monotonic()
            figures[name] = CHECKS[name](bench)
            print(name, round(time.monotonic() - start, 2), file=sys.stderr, flush=True)
        if here.main:
            save_result(folder, figures)
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(lambda: main(Path(sys.argv[1]))))
