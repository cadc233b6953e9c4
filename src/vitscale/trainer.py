"""The training loop. Flows in: an engine, a loader, a plan and where the run stands. Flows out: rows to observers,
checkpoints, and the state at the end.

Not here: what an update is (engine), what a batch is (data), how a run is put together (run).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from vitscale.checkpoint import TrainState, checkpoints, mark_best, prune, write_checkpoint
from vitscale.config.run import RunConfig
from vitscale.data.batch import UpdateBatch
from vitscale.data.loader import TrainLoader
from vitscale.distributed import StopRequest, World
from vitscale.engine.base import Engine, StepOutput
from vitscale.engine.edge import Edge
from vitscale.errors import NonFiniteLoss, Stopped
from vitscale.evaluate import EvalResult
from vitscale.pacing import Pacing, as_tensor
from vitscale.phases import NULL, Recorder

Row = dict[str, Any]
Evaluate = Callable[[Callable[[], bool]], EvalResult | None]
"""Evaluates on val; takes a function that says when to give up, and then returns None. Collective."""


class Observer(Protocol):
    """Hears of a run on rank 0. Rows are flat dicts with a `kind`: train, eval, checkpoint or note."""

    def start(self, info: Row) -> None:
        """Once, before the first update of this session."""
        ...

    def metrics(self, row: Row) -> None:
        """A row of numbers (kind train or eval)."""
        ...

    def event(self, row: Row) -> None:
        """Something that happened (kind checkpoint or note)."""
        ...

    def close(self) -> None:
        """Once, also after a failure."""
        ...


@dataclass(frozen=True)
class Plan:
    """How long a run is. stop_window is None where max_updates ends it (fp16 may need more windows than updates)."""

    total_updates: int
    updates_per_epoch: int
    stop_window: int | None


def plan_run(config: RunConfig, updates_per_epoch: int) -> Plan:
    """Epochs and max_updates, whichever comes first."""
    by_epochs = config.train.epochs * updates_per_epoch if config.train.epochs else None
    limits = [n for n in (by_epochs, config.train.max_updates) if n is not None]
    return Plan(min(limits), updates_per_epoch, by_epochs)


class Trainer:
    """Runs updates until the plan is fulfilled."""

    def __init__(
        self,
        engine: Engine,
        loader: TrainLoader,
        plan: Plan,
        state: TrainState,
        config: RunConfig,
        world: World,
        run: Path,
        evaluate: Evaluate,
        observers: Sequence[Observer] = (),
        recorder: Recorder = NULL,
        conclude: bool = True,
        pacing: Pacing | None = None,
    ) -> None:
        """conclude: whether the end of training is evaluated and written as a checkpoint, and a stop written, too.
        pacing: listens to what each rank needs for its own part; None: nobody does."""
        self.engine, self.loader, self.plan, self.state = engine, loader, plan, state
        self.config, self.world, self.run = config, world, run
        self.evaluate, self.observers, self.recorder, self.conclude = evaluate, observers, recorder, conclude
        self.train_seconds = 0.0  # of the updates of this session: no evaluation, no checkpoint
        self._pacing = pacing
        self._intervals = Intervals(world, pacing)
        self._nonfinite = 0
        self._lr = 0.0

    def fit(self) -> TrainState:
        """Train from where the state says to the end of the plan, or until an evaluation reaches the target.

        Raises Stopped at SIGTERM, after a checkpoint if the run is to be concluded; NonFiniteLoss if the loss stays
        non-finite.
        """
        stop = StopRequest(self.world)
        try:
            self._evaluate_if_due(stop)  # a run stopped during an evaluation owes it
            self._intervals.restart()
            while not self._done() and self.state.window < self._last_window():
                self._train(stop)
            self._finish(stop)
        finally:
            stop.close()
        return self.state

    def _train(self, stop: StopRequest) -> None:
        """To the end, or until the shares of the ranks change: what was read ahead is by the old ones."""
        batches: Iterable[UpdateBatch] = self.loader.iterate(self.state.window, self._last_window())
        for batch in batches if self._pacing is None else self._pacing.batches(batches):
            self._lr = self.engine.learning_rate()
            output = self.engine.train_batch(batch)
            self.recorder.update(batch.num_samples)
            self._advance(batch, output)
            self._after_update(stop)
            if stop.poll():
                self._stop()
            if self._done() or self._rebalanced():
                break

    def _rebalanced(self) -> bool:
        events = self._pacing.rebalanced() if self._pacing is not None else []
        self._happened_all(events)
        return bool(events)

    def _done(self) -> bool:
        target, best = self.config.train.target_top1, self.state.best_top1
        reached = target is not None and best is not None and best >= target
        return reached or self.engine.update >= self.plan.total_updates

    def _last_window(self) -> int:
        # Without epochs, skipped fp16 steps may stretch the run: the loop's own test ends it.
        return self.plan.stop_window if self.plan.stop_window is not None else 2**62

    def _advance(self, batch: UpdateBatch, output: StepOutput) -> None:
        self._intervals.add(output, batch.num_samples)
        self.state = replace(
            self.state,
            update=self.engine.update,
            window=batch.window + 1,
            images_seen=self.state.images_seen + batch.num_samples,
        )

    def _after_update(self, stop: StopRequest) -> None:
        if self.state.window % self.config.log.every_updates == 0:
            self._log()
        self._evaluate_if_due(stop)
        if self._due(self.config.checkpoint.every_updates, self.config.checkpoint.every_epochs):
            self._checkpoint()

    def _due(self, every_updates: int | None, every_epochs: int | None) -> bool:
        window = self.state.window
        by_updates = every_updates is not None and window % every_updates == 0
        by_epochs = every_epochs is not None and window % (every_epochs * self.plan.updates_per_epoch) == 0
        return window > 0 and (by_updates or by_epochs)

    # --- rows -------------------------------------------------------------------------------------------------

    def _log(self, *, wait: bool = False) -> None:
        """Close the interval and tell of those whose losses have come from the device (all of them with `wait`)."""
        about = {
            "kind": "train",
            "update": self.state.update,
            "epoch": (self.state.window - 1) / self.plan.updates_per_epoch,
            "lr": self._lr,
            "skipped": self.state.window - self.state.update,
        }
        for row in self._intervals.close(about, wait=wait):
            by_rank = row.pop("by_rank")
            if self._pacing is not None:
                first = row["update"] - len(row["losses"]) + 1
                self._happened_all(self._pacing.hear(by_rank, first, row["step_time_s"]))
            self.train_seconds += row["step_time_s"] * len(row["losses"])
            left = self.plan.total_updates - row["update"]
            self._tell({**row, "eta_s": left * row["step_time_s"]})
            for loss in row["losses"]:
                self._nonfinite = 0 if math.isfinite(loss) else self._nonfinite + 1
            if self._nonfinite >= self.config.train.max_nonfinite_updates:
                self._give_up(row)

    def _tell(self, row: Row) -> None:
        for observer in self.observers:
            observer.metrics(row)

    def _happened(self, kind: str, **values: Any) -> None:
        for observer in self.observers:
            observer.event({"kind": kind, "update": self.state.update, **values})

    def _happened_all(self, events: Iterable[Row]) -> None:
        for event in events:
            self._happened(**event)

    def _give_up(self, row: Row) -> None:
        norm = "" if row["grad_norm"] is None else f", gradient norm {row['grad_norm']:.3g}"
        raise NonFiniteLoss(
            f"the loss was not finite for {self._nonfinite} updates in a row, up to update {row['update']} (learning "
            f"rate {row['lr']:.3g}{norm}); {self._kept()}; {self._hints()}"
        )

    def _kept(self) -> str:
        names = [path.name for path in checkpoints(self.run)]
        return f"the last good checkpoint is kept ({names[-1]})" if names else "there is no checkpoint yet"

    def _hints(self) -> str:
        hints = "lower optim.lr, set optim.clip_grad, or lengthen optim.warmup_updates"
        return hints + (", or use precision.compute=bf16" if self.config.precision.compute == "fp16" else "")

    # --- evaluation and checkpoints -----------------------------------------------------------------------------

    def _evaluate_if_due(self, stop: StopRequest) -> None:
        due = self._due(self.config.eval.every_updates, self.config.eval.every_epochs)
        if due and self.state.window != self.state.evaluated_window:
            self._evaluate(stop)

    def _evaluate(self, stop: StopRequest) -> None:
        self._log(wait=True)
        with self.recorder.phase("evaluate"):
            result = self.evaluate(lambda: self._polled(stop))
        if result is None:  # asked to stop on the way: the resumed run evaluates
            return
        best = self.state.best_top1
        better = best is None or result.top1 > best
        self.state = replace(
            self.state,
            evaluated_window=self.state.window,
            best_top1=result.top1 if better else best,
            best_update=self.state.update if better else self.state.best_update,
        )
        epoch = self.state.window / self.plan.updates_per_epoch
        about = {"update": self.state.update, "epoch": epoch, "train_seconds": self.train_seconds}
        self._tell({"kind": "eval", **about, **result.row()})
        if better and self.config.checkpoint.keep_best and self._checkpoint() and self.world.main:
            mark_best(self.run, self.state.update, result.top1)
        self._intervals.restart()

    def _polled(self, stop: StopRequest) -> bool:
        self.recorder.alive()
        return stop.poll()

    def _checkpoint(self) -> bool:
        """Write a checkpoint and delete old ones; False if the weights are not finite."""
        self._log(wait=True)
        with self.recorder.phase("checkpoint"):
            start = time.monotonic()
            path = write_checkpoint(
                self.run, self.engine, self.state, self.world, ema=self.config.optim.ema_decay is not None
            )
            if path is not None and self.world.main:
                prune(self.run, self.config.checkpoint.keep_last)
        if path is None:
            self._happened("note", text=f"no checkpoint at update {self.state.update}: a weight is not finite")
        else:
            self._happened("checkpoint", path=str(path), seconds=time.monotonic() - start)
        self._intervals.restart()
        return path is not None

    def _stop(self) -> None:
        if not self.conclude:  # a measurement, of which nothing is kept
            raise Stopped(
                f"stopped at update {self.state.update} of {self.plan.total_updates}; nothing was written, and the "
                "same command begins anew"
            )
        written = "after a checkpoint" if self._checkpoint() else "without a checkpoint, since a weight is not finite"
        raise Stopped(
            f"stopped at update {self.state.update} of {self.plan.total_updates} {written}; "
            "run the same command again to go on"
        )

    def _finish(self, stop: StopRequest) -> None:
        self._log(wait=True)
        if not self.conclude:
            return
        if self.state.evaluated_window != self.state.window:
            self._evaluate(stop)
        if self.state.evaluated_window != self.state.window:
            self._stop()
        if not self._checkpoint():
            raise NonFiniteLoss(
                f"the run ended at update {self.state.update} with weights that are not finite; {self._kept()}; "
                f"{self._hints()}"
            )


class Intervals:
    """The updates between two rows. Losses and gradient norms are copied from the device behind its work and read one
    interval later, so that the host never waits for the device in the middle of training."""

    def __init__(self, world: World, pacing: Pacing | None = None) -> None:
        """pacing: what it says of this rank is added up over ranks together with the losses."""
        self._world, self._pacing = world, pacing
        self._cuda = world.device.type == "cuda"
        self._closed: deque[tuple[Row, torch.Tensor, Edge, Edge]] = deque()
        self.restart()

    def restart(self) -> None:
        """Begin anew, so that evaluation and checkpoints do not count as training time."""
        self._outputs: list[StepOutput] = []
        self._images = 0
        if self._pacing is not None:
            self._pacing.restart()
        self._start = Edge(self._cuda)

    def add(self, output: StepOutput, images: int) -> None:
        """One update."""
        self._outputs.append(output)
        self._images += images

    def close(self, about: Row, *, wait: bool) -> list[Row]:
        """End the interval and return the rows that are ready, oldest first. Collective."""
        if self._outputs:
            losses = torch.stack([output.loss for output in self._outputs])
            own = self._pacing.say() if self._pacing is not None else []
            summed = self._world.sum(torch.cat([losses, as_tensor(own, losses)]) if own else losses)
            norm = self._outputs[-1].grad_norm
            numbers = torch.cat([torch.full_like(losses[:1], math.nan) if norm is None else norm.reshape(1), summed])
            row = {**about, "images": self._images, "has_norm": norm is not None, **memory(self._world.device)}
            row["updates"] = len(self._outputs)
            begin = self._start
            numbers = numbers.detach().to("cpu", non_blocking=True)
            self.restart()
            self._closed.append((row, numbers, begin, self._start))
        keep = 1 if self._cuda and not wait else 0
        return [self._row(*self._closed.popleft()) for _ in range(len(self._closed) - keep)]

    def _row(self, about: Row, numbers: torch.Tensor, begin: Edge, end: Edge) -> Row:
        seconds = end.since(begin)
        norm, *summed = numbers.tolist()
        images, has_norm, updates = about.pop("images"), about.pop("has_norm"), about.pop("updates")
        losses, by_rank = summed[:updates], summed[updates:]
        return {
            **about,
            "loss": sum(losses) / len(losses),
            "losses": losses,
            "by_rank": by_rank,
            "grad_norm": norm if has_norm else None,
            "images_per_s": images / seconds,
            "step_time_s": seconds / len(losses),
        }


def memory(device: torch.device) -> Row:
    """Peak memory of this rank: of the device, or of the process on the CPU."""
    if device.type == "cuda":
        return {"peak_allocated_bytes": torch.cuda.max_memory_allocated(device)}
    import resource

    return {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
