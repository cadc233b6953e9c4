"""The composition root: a RunConfig becomes a finished run. `vitscale train` and every child rank call it.

In: the config file of one command, inside a process that a launcher may have given a rank. Out: a run folder
(results.run_folder) and a Result. Nothing here loops or computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitscale import checkpoint
from vitscale.assembly import Parts, assemble, eval_loader, open_data
from vitscale.checkpoint import TrainState
from vitscale.config.decide import Decisions, decide
from vitscale.config.load import dump_config, load_config
from vitscale.config.performance import fallbacks
from vitscale.config.run import RunConfig
from vitscale.data.images import Splits
from vitscale.data.loader import EvalLoader
from vitscale.distributed import World, environment_ranks, joined, make_deterministic, pick_device
from vitscale.engine.base import Engine
from vitscale.errors import EXIT_OK, CheckpointError
from vitscale.evaluate import EvalResult, evaluate
from vitscale.measure.device_state import state_now
from vitscale.observers.build import build_observers
from vitscale.pacing import Pacing, unknown_state
from vitscale.phases import NULL, Recorder
from vitscale.results.files import write_atomically, write_json
from vitscale.results.run_folder import CONFIG_FILE, check_run_folder, hold_run_folder
from vitscale.trainer import Observer, Trainer


@dataclass(frozen=True)
class Result:
    """What a finished run says of itself; also RUN/result.json."""

    out: str
    engine: str
    zero_stage: int
    world_size: int
    updates: int
    images_seen: int
    best_top1: float | None
    top1: float | None
    top5: float | None
    loss: float | None
    train_seconds: float
    checkpoint: str | None


def train(
    config: RunConfig,
    out: Path,
    *,
    fresh: bool = False,
    device: str | None = None,
    recorder: Recorder = NULL,
    observers: Sequence[Observer] | None = None,
    conclude: bool = True,
) -> Result:
    """Train in this process (and in the other ranks, if a launcher started some), or resume what is in `out`.

    device: "cpu", "cuda" or None (CUDA where there is one). conclude=False ends without a last evaluation and
    checkpoint, for measurements of speed. Raises VitscaleError.
    """
    _, world_size, local_rank = environment_ranks()
    decisions = decide(config, world_size=world_size, device_type=pick_device(device, local_rank).type)
    if config.train.deterministic:
        make_deterministic()
    with joined(device, group=decisions.engine != "single") as world, _locked(world, out, fresh):
        return _Run(config, decisions, world, out, recorder).go(observers, conclude=conclude)


@contextmanager
def _locked(world: World, out: Path, fresh: bool) -> Iterator[None]:
    """Rank 0 holds the folder; the others hear of it if it cannot."""
    with ExitStack() as held:

        def take() -> None:
            check_run_folder(out, fresh=fresh)
            held.enter_context(hold_run_folder(out))

        world.on_main(take)
        yield


class _Run:
    """Builds the parts in order; each step is one method."""

    def __init__(self, config: RunConfig, decisions: Decisions, world: World, out: Path, recorder: Recorder) -> None:
        self.config, self.decisions, self.world, self.out, self.recorder = config, decisions, world, out, recorder

    def go(self, observers: Sequence[Observer] | None, *, conclude: bool) -> Result:
        config, world = self.config, self.world
        splits = open_data(config)
        identity = run_identity(config, self.decisions, splits)
        resume, told = world.on_main(lambda: self._resume_point(identity))
        resume_from = resume / "engine" if resume else None
        parts = assemble(config, self.decisions, world, splits, recorder=self.recorder, resume_from=resume_from)
        engine, plan = parts.engine, parts.plan
        state = self._restore(engine, resume) if resume else TrainState(0, 0, 0, identity)
        world.on_main(self._describe)
        watching: Sequence[Observer] = ()
        if world.main:
            watching = build_observers(config, self.out) if observers is None else observers
        val = eval_loader(parts, config, world)
        evaluator = Evaluator(parts, val, world, ema=config.eval.use_ema)
        pacing = self._pacing(parts, val)
        trainer = Trainer(
            engine,
            parts.loader,
            plan,
            state,
            config,
            world,
            self.out,
            evaluator,
            watching,
            self.recorder,
            conclude,
            pacing,
        )
        try:
            info = self._info(parts, state, resumed=resume is not None)
            info["notes"] += told
            for observer in trainer.observers:
                observer.start(info)
            final = trainer.fit()
            self.recorder.finish(world.gather)
        finally:
            for observer in trainer.observers:
                observer.close()
            engine.close()
        result = self._result(final, evaluator.last, trainer.train_seconds)
        if world.main:
            write_json(self.out / "result.json", asdict(result))
        return result

    def _pacing(self, parts: Parts, val: EvalLoader) -> Pacing:
        decided = parts.decisions
        state = state_now(self.world.device) or unknown_state
        loaders = (parts.loader, val)
        return Pacing(parts.engine.own_time, self.world, decided.shares, decided.unit, loaders, parts.balance, state)

    def _resume_point(self, identity: dict[str, Any]) -> tuple[Path | None, tuple[str, ...]]:
        """The newest whole checkpoint, if this folder has one, which must belong to this config; and what to say of
        newer ones."""
        checkpoint.sweep(self.out)
        path, told = checkpoint.newest_whole(self.out)
        if path is not None:
            check_identity(checkpoint.read_state(path).identity, identity, path)
        return path, told

    def _restore(self, engine: Engine, path: Path) -> TrainState:
        engine.load(path / "engine")
        if self.config.optim.ema_decay is not None:
            engine.load_ema(checkpoint.read_weights(path, ema=True))
        state = checkpoint.read_state(path)
        if not self.config.checkpoint.keep_best:
            return state
        return self.world.on_main(lambda: checkpoint.settle_best(self.out, state))

    def _describe(self) -> None:
        from vitscale.measure.environment import describe

        write_atomically(self.out / CONFIG_FILE, dump_config(self.config))
        write_json(self.out / "environment.json", describe())

    def _info(self, parts: Parts, state: TrainState, *, resumed: bool) -> dict[str, Any]:
        # How pretrained weights were fitted is of no interest to a run that has gone on from them.
        notes = [*parts.splits.notes, *parts.loader.notes, *parts.engine.notes, *parts.notes]
        notes += () if resumed else parts.fitted
        if self.world.device.type == "cuda":
            notes += fallbacks(self.config, self.decisions.reasons)
        return {
            "out": str(self.out),
            "engine": self.decisions.engine,
            "zero_stage": self.decisions.zero_stage,
            "world_size": self.world.world_size,
            "device": str(self.world.device),
            "precision": "/".join(self.decisions.precision),
            **self.decisions.batch._asdict(),
            "shares": list(parts.decisions.shares),
            "train_images": len(parts.splits.train),
            "val_images": len(parts.splits.val),
            "total_updates": parts.plan.total_updates,
            "updates_per_epoch": parts.plan.updates_per_epoch,
            "update": state.update,
            "augment_on": parts.loader.augment_on,
            "notes": notes,
        }

    def _result(self, state: TrainState, last: EvalResult | None, seconds: float) -> Result:
        names = [p.name for p in checkpoint.checkpoints(self.out)]
        return Result(
            out=str(self.out),
            engine=self.decisions.engine,
            zero_stage=self.decisions.zero_stage,
            world_size=self.world.world_size,
            updates=state.update,
            images_seen=state.images_seen,
            best_top1=state.best_top1,
            top1=last.top1 if last else None,
            top5=last.top5 if last else None,
            loss=last.loss if last else None,
            train_seconds=seconds,
            checkpoint=names[-1] if names else None,
        )


class Evaluator:
    """Evaluates an engine on one split; remembers the last result."""

    def __init__(self, parts: Parts, loader: EvalLoader, world: World, *, ema: bool) -> None:
        self._engine, self._num_classes = parts.engine, parts.num_classes
        self._loader, self._world, self._ema = loader, world, ema
        self.last: EvalResult | None = None

    def __call__(self, should_stop: Callable[[], bool]) -> EvalResult | None:
        """Collective; None if asked to stop on the way."""
        with self._engine.evaluating(ema=self._ema):
            result = evaluate(
                self._engine.eval_forward,
                self._loader,
                self._num_classes,
                reduce=self._world.sum,
                should_stop=should_stop,
            )
        self.last = result or self.last
        return result


def run_identity(config: RunConfig, decisions: Decisions, splits: Splits) -> dict[str, Any]:
    """What must stay the same when a run is resumed; everything else (devices, length, rates) may change.

    classes, mean and std are what a trained model needs to read new images.
    """
    dump = config.model_dump(mode="json")
    data = {key: value for key, value in dump["data"].items() if key not in ("root", "workers", "download")}
    model = {key: value for key, value in dump["model"].items() if key != "pretrained"}
    identity = {f"model.{key}": value for key, value in model.items()}
    identity |= {f"data.{key}": value for key, value in data.items()}
    identity |= {f"optim.{key}": dump["optim"][key] for key in ("name", "ema_decay", "layer_decay")}
    identity |= {"train.seed": config.train.seed, "train.global_batch_size": decisions.batch.global_batch_size}
    identity |= {"classes": list(splits.classes), "mean": list(splits.mean), "std": list(splits.std)}
    identity["engine family"] = "deepspeed" if decisions.engine == "deepspeed" else "native"
    return identity


def check_identity(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError naming the first key that differs."""
    for key in now:
        if key in saved and saved[key] != now[key]:
            raise CheckpointError(
                f"{path} is of a run with {key}={saved[key]}, and this command has {key}={now[key]}; "
                "give the same config, or choose another --out"
            )


def train_from_file(
    config_path: Path, out: Path, *, fresh: bool = False, device: str | None = None, recorder: Recorder = NULL
) -> int:
    """Train from a resolved config file and say on rank 0 where things are; returns 0 or raises VitscaleError."""
    train(load_config(config_path), out, fresh=fresh, device=device, recorder=recorder)
    return EXIT_OK
