"""The trainer over a fake engine: how long, when to evaluate and checkpoint, what is best, and how a run ends early."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscale.checkpoint import (
    TrainState,
    checkpoint_name,
    checkpoints,
    find_checkpoint,
    read_state,
    read_weights,
    settle_best,
)
from vitscale.config.load import build_config
from vitscale.config.run import RunConfig
from vitscale.data.batch import UpdateBatch
from vitscale.distributed import World
from vitscale.engine.base import StepOutput
from vitscale.errors import EXIT_RUN_FAILED, EXIT_STOPPED, NonFiniteLoss, Stopped
from vitscale.evaluate import EvalResult
from vitscale.phases import NULL, NullRecorder, Recorder
from vitscale.trainer import Plan, Trainer, plan_run

WORLD = World(0, 1, 0, torch.device("cpu"))
IMAGES = 8
PER_EPOCH = 5
NAN = float("nan")


def config_of(**sections: Any) -> RunConfig:
    tree: dict[str, Any] = {
        "train": {"epochs": 2, "global_batch_size": IMAGES},
        "eval": {"every_epochs": None},
        "checkpoint": {"every_epochs": None, "keep_last": 99},
        "log": {"every_updates": 2},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return build_config(tree)


class FakeEngine:
    """Counts updates. losses and skipped are by window; its one weight is the number of applied updates."""

    def __init__(self, losses: dict[int, float], skipped: set[int], on_window: Callable[[int], None]) -> None:
        self.update, self.losses, self.skipped, self.on_window = 0, losses, skipped, on_window
        self.weight = 0.0

    def learning_rate(self) -> float:
        return 0.1 * (self.update + 1)

    def train_batch(self, batch: UpdateBatch) -> StepOutput:
        self.on_window(batch.window)
        applied = batch.window not in self.skipped
        self.update += applied
        self.weight += applied
        return StepOutput(torch.tensor(self.losses.get(batch.window, 1.0)), torch.tensor(0.5), applied)

    def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
        return {"weight": torch.tensor([self.weight])}

    def save(self, folder: Path) -> None:
        (folder / "update").write_text(str(self.update))


class FakeLoader:
    updates_per_epoch = PER_EPOCH

    def __init__(self) -> None:
        self.began: list[int] = []

    def iterate(self, start: int, stop: int) -> Iterator[UpdateBatch]:
        self.began.append(start)
        for window in range(start, stop):
            yield UpdateBatch((), IMAGES, window, window // PER_EPOCH)


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def start(self, info: dict[str, Any]) -> None: ...

    def metrics(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    event = metrics

    def close(self) -> None: ...

    def of(self, kind: str, key: str = "update") -> list[Any]:
        return [row[key] for row in self.rows if row["kind"] == kind]


class Session:
    """One session of a run folder, resumed from its last checkpoint if it has one."""

    def __init__(
        self,
        run: Path,
        *,
        losses: dict[int, float] | None = None,
        skipped: frozenset[int] = frozenset(),
        top1: Callable[[int], float] = lambda update: update / 100,
        on_window: Callable[[int], None] = lambda window: None,
        on_evaluate: Callable[[int], None] = lambda update: None,
        recorder: Recorder = NULL,
        conclude: bool = True,
        pacing: Any = None,
        **sections: Any,
    ) -> None:
        config = config_of(**sections)
        self.engine = FakeEngine(losses or {}, set(skipped), on_window)
        self.heard = Heard()
        self.plan = plan_run(config, PER_EPOCH)
        self.top1, self.on_evaluate = top1, on_evaluate
        state = TrainState(0, 0, 0, {})
        if checkpoints(run):
            path = find_checkpoint(run)
            state = settle_best(run, read_state(path))
            self.engine.update = int((path / "engine" / "update").read_text())
            self.engine.weight = read_weights(path)["weight"].item()
        engine: Any = self.engine
        loader: Any = FakeLoader()
        self.loader = loader
        parts: Any = (engine, loader, self.plan, state, config, WORLD, run, self.evaluate, [self.heard])
        self.trainer = Trainer(*parts, recorder, conclude, pacing)

    def evaluate(self, should_stop: Callable[[], bool]) -> EvalResult | None:
        self.on_evaluate(self.engine.update)
        if should_stop():
            return None
        return EvalResult(self.top1(self.engine.update), 1.0, 0.5, 10, (), torch.zeros(1, 1))

    def fit(self) -> TrainState:
        return self.trainer.fit()


def saved(run: Path) -> list[int]:
    return [read_state(path).update for path in checkpoints(run)]


# --- plan and cadence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "plan"),
    [
        ({"epochs": 3}, Plan(15, 5, 15)),
        ({"epochs": 3, "max_updates": 7}, Plan(7, 5, 15)),
        ({"epochs": 1, "max_updates": 7}, Plan(5, 5, 5)),
        ({"epochs": None, "max_updates": 7}, Plan(7, 5, None)),
    ],
)
def test_epochs_and_max_updates_whichever_comes_first(train: dict[str, Any], plan: Plan, tmp_path: Path) -> None:
    session = Session(tmp_path, train=train)
    assert session.plan == plan
    state = session.fit()
    assert (state.update, state.window, state.images_seen) == (plan.total_updates,) * 2 + (IMAGES * plan.total_updates,)


def test_a_run_without_cadence_evaluates_and_checkpoints_once_at_the_end(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.fit()
    assert session.heard.of("eval") == session.heard.of("checkpoint")[:1] == saved(tmp_path) == [10]


def test_evaluation_by_epochs(tmp_path: Path) -> None:
    session = Session(tmp_path, train={"epochs": 5}, eval={"every_epochs": 2}, checkpoint={"keep_best": False})
    session.fit()
    assert session.heard.of("eval") == [10, 20, 25]
    assert saved(tmp_path) == [25]


def test_evaluation_by_updates_and_epochs(tmp_path: Path) -> None:
    session = Session(tmp_path, eval={"every_updates": 4, "every_epochs": 1}, checkpoint={"keep_best": False})
    session.fit()
    assert session.heard.of("eval") == [4, 5, 8, 10]


@pytest.mark.parametrize(
    ("checkpoint", "updates"),
    [
        ({"every_updates": 4}, [4, 8, 10]),
        ({"every_epochs": 1}, [5, 10]),
        ({"every_updates": 4, "every_epochs": 1}, [4, 5, 8, 10]),
        ({"every_updates": 4, "keep_last": 2}, [8, 10]),
    ],
)
def test_checkpoints_by_updates_and_epochs(checkpoint: dict[str, Any], updates: list[int], tmp_path: Path) -> None:
    Session(tmp_path, checkpoint=checkpoint).fit()
    assert saved(tmp_path) == updates


def test_rows_of_training(tmp_path: Path) -> None:
    session = Session(tmp_path, losses={2: 3.0, 3: 5.0}, train={"epochs": 1})
    session.fit()
    rows = [row for row in session.heard.rows if row["kind"] == "train"]
    assert [row["update"] for row in rows] == [2, 4, 5]  # every 2 updates, and what is left before the evaluation
    assert [row["losses"] for row in rows] == [[1.0, 1.0], [3.0, 5.0], [1.0]]
    assert [row["loss"] for row in rows] == [1.0, 4.0, 1.0]
    assert [row["lr"] for row in rows] == pytest.approx([0.2, 0.4, 0.5])  # of the row's last update
    assert [row["epoch"] for row in rows] == pytest.approx([0.2, 0.6, 0.8])
    assert rows[0]["grad_norm"] == 0.5
    assert rows[0]["images_per_s"] == pytest.approx(IMAGES / rows[0]["step_time_s"])
    assert rows[-1]["eta_s"] == 0.0


# --- an end that somebody else decides -----------------------------------------------------------------------------


def test_without_a_conclusion_a_run_ends_with_its_last_update(tmp_path: Path) -> None:
    session = Session(tmp_path, conclude=False)
    assert session.fit().update == 10
    assert session.heard.of("train") == [2, 4, 6, 8, 10]
    assert session.heard.of("eval") == session.heard.of("checkpoint") == saved(tmp_path) == []


def test_without_a_conclusion_a_stop_writes_nothing_and_says_so(tmp_path: Path) -> None:
    def stop_at_3(window: int) -> None:
        if window == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"stopped at update 4 of 10; nothing was written"):
        Session(tmp_path, conclude=False, on_window=stop_at_3).fit()
    assert saved(tmp_path) == []


def test_a_run_ends_at_the_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    target = {"train": {"epochs": 9, "target_top1": 0.15}, "eval": {"every_epochs": 1}}
    session = Session(tmp_path, **target)  # its top-1 is a hundredth of the update
    assert session.fit().update == 15
    assert session.heard.of("eval") == [5, 10, 15]
    assert saved(tmp_path)[-1] == 15
    again = Session(tmp_path, **target)
    assert again.fit().update == 15  # resumed: it has been reached
    assert again.heard.of("train") == []


def test_an_evaluation_says_how_long_was_trained_before_it(tmp_path: Path) -> None:
    """So that a time to any target can be read: updates count, evaluations and checkpoints do not."""
    session = Session(
        tmp_path,
        eval={"every_epochs": 1},
        checkpoint={"every_updates": 1},
        on_window=lambda window: time.sleep(0.02),
        on_evaluate=lambda update: time.sleep(1.0),
    )
    session.fit()
    first, second = session.heard.of("eval", "train_seconds")
    assert 5 * 0.02 <= first < 0.9
    assert first + 5 * 0.02 <= second < 1.7
    assert second == pytest.approx(session.trainer.train_seconds)


def test_a_target_out_of_reach_ends_with_the_plan(tmp_path: Path) -> None:
    session = Session(tmp_path, train={"epochs": 2, "target_top1": 0.99}, eval={"every_epochs": 1})
    assert session.fit().update == 10


class Told(NullRecorder):
    """A recorder that remembers."""

    def __init__(self) -> None:
        self.images: list[int] = []
        self.signs_of_life = 0

    def update(self, images: int) -> None:
        self.images.append(images)

    def alive(self) -> None:
        self.signs_of_life += 1


def test_the_recorder_hears_of_updates_and_of_evaluation_batches(tmp_path: Path) -> None:
    told = Told()
    Session(tmp_path, recorder=told, skipped=frozenset({3})).fit()
    assert told.images == [IMAGES] * 10  # windows, whether their step was applied or not
    assert told.signs_of_life == 1  # the fake evaluation asks once


# --- what each rank needs for its own part ------------------------------------------------------------------------


class FakePacing:
    """Says two numbers for each interval, and changes the shares after the update of `at`."""

    def __init__(self, at: int) -> None:
        self.at, self.updates, self.began = at, 0, 0
        self.heard: list[tuple[list[float], int]] = []

    def batches(self, batches: Iterator[UpdateBatch]) -> Iterator[UpdateBatch]:
        for batch in batches:
            self.updates += 1
            yield batch

    def restart(self) -> None:
        self.began = self.updates

    def say(self) -> list[float]:
        return [7.0, float(self.updates - self.began)]

    def hear(self, numbers: list[float], first_update: int, step_s: float) -> list[dict[str, Any]]:
        assert step_s > 0
        self.heard.append((numbers, first_update))
        return [{"kind": "note", "text": "heard"}] if len(self.heard) == 1 else []

    def rebalanced(self) -> list[dict[str, Any]]:
        return [{"kind": "balance", "shares": [5, 3]}] if self.updates == self.at else []


def test_pacing_rides_with_the_losses_and_its_events_are_told(tmp_path: Path) -> None:
    pacing = FakePacing(at=99)
    session = Session(tmp_path, pacing=pacing, losses={2: 3.0}, train={"epochs": 1})
    session.fit()
    assert pacing.heard == [([7.0, 2.0], 1), ([7.0, 2.0], 3), ([7.0, 1.0], 5)]
    assert session.heard.of("note", "text") == ["heard"]
    rows = [row for row in session.heard.rows if row["kind"] == "train"]
    assert [row["losses"] for row in rows] == [[1.0, 1.0], [3.0, 1.0], [1.0]]
    assert rows[0]["grad_norm"] == 0.5
    assert not any("by_rank" in row for row in rows)


def test_when_shares_change_the_loader_begins_anew_at_the_next_window(tmp_path: Path) -> None:
    windows: list[int] = []
    session = Session(tmp_path, pacing=FakePacing(at=4), on_window=windows.append)
    session.fit()
    assert windows == list(range(10))
    assert session.loader.began == [0, 4]
    assert session.heard.of("balance", "shares") == [[5, 3]]
    assert session.heard.of("balance") == [4]


# --- best ---------------------------------------------------------------------------------------------------------


def peak_at_10(update: int) -> float:
    return 0.9 if update == 10 else 0.5


def test_the_best_is_marked_and_kept(tmp_path: Path) -> None:
    session = Session(
        tmp_path,
        train={"epochs": 5},
        eval={"every_epochs": 1},
        checkpoint={"every_epochs": 1, "keep_last": 1},
        top1=peak_at_10,
    )
    state = session.fit()
    assert (state.best_top1, state.best_update) == (0.9, 10)
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(10)
    assert saved(tmp_path) == [10, 25]


def test_an_equal_result_does_not_replace_the_best(tmp_path: Path) -> None:
    Session(tmp_path, eval={"every_epochs": 1}, top1=lambda update: 0.5).fit()
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(5)


def test_without_keep_best_none_is_marked(tmp_path: Path) -> None:
    state = Session(tmp_path, checkpoint={"keep_best": False}).fit()
    assert state.best_top1 == 0.1
    assert not (tmp_path / "checkpoints" / "best.json").exists()


def test_a_longer_run_still_knows_the_best_of_the_first_end(tmp_path: Path) -> None:
    """The checkpoint at 10 is written by its cadence, before the evaluation at the end finds it the best."""
    every = {"every_updates": 5, "keep_last": 1}
    Session(tmp_path, checkpoint=every, top1=peak_at_10).fit()
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(10)
    longer = Session(tmp_path, checkpoint=every, top1=peak_at_10, train={"epochs": 4})
    assert longer.fit().best_update == 10
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(10)
    assert saved(tmp_path) == [10, 20]


# --- losses that are not finite -----------------------------------------------------------------------------------


def test_the_run_ends_after_k_updates_in_a_row_and_the_last_good_checkpoint_stays(tmp_path: Path) -> None:
    session = Session(
        tmp_path,
        losses=dict.fromkeys(range(5, 99), NAN),
        train={"max_nonfinite_updates": 3, "epochs": 9},
        checkpoint={"every_updates": 4},
    )
    with pytest.raises(NonFiniteLoss) as caught:
        session.fit()
    assert caught.value.exit_code == EXIT_RUN_FAILED
    for part in ("not finite for 3 updates in a row, up to update 8", "learning rate 0.8", "gradient norm 0.5",
                 "last good checkpoint is kept", "lower optim.lr"):  # fmt: skip
        assert part in str(caught.value)
    assert session.engine.update == 8
    assert session.heard.of("train", "losses")[-1][-1] != session.heard.of("train", "losses")[-1][-1]
    assert saved(tmp_path) == [4]


def test_the_hints_for_fp16_name_bf16(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match=r"or use precision.compute=bf16"):
        Session(tmp_path, losses=dict.fromkeys(range(9), NAN), precision={"compute": "fp16"}).fit()


def test_fewer_than_k_in_a_row_do_not_end_it_also_across_rows_and_checkpoints(tmp_path: Path) -> None:
    losses = {0: NAN, 1: NAN, 3: NAN, 4: NAN, 6: float("inf")}
    options = {"train": {"max_nonfinite_updates": 3}, "checkpoint": {"every_updates": 1}}
    assert Session(tmp_path / "a", losses=losses, **options).fit().update == 10
    with pytest.raises(NonFiniteLoss):
        Session(tmp_path / "b", losses={**losses, 2: NAN}, **options).fit()


def spoil(session: list[Session]) -> Callable[[int], None]:
    def on_window(window: int) -> None:
        if window == 8:
            session[0].engine.weight = NAN

    return on_window


def test_weights_that_are_not_finite_are_never_saved_and_fail_the_run(tmp_path: Path) -> None:
    holder: list[Session] = []
    holder.append(Session(tmp_path, on_window=spoil(holder), checkpoint={"every_updates": 3}, top1=lambda update: 0.5))
    with pytest.raises(NonFiniteLoss, match="ended at update 10 with weights that are not finite"):
        holder[0].fit()
    assert saved(tmp_path) == [3, 6]
    assert "a weight is not finite" in holder[0].heard.of("note", "text")[0]
    assert not (tmp_path / "checkpoints" / "best.json").exists()


# --- SIGTERM ------------------------------------------------------------------------------------------------------


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_stops_after_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    session = Session(tmp_path, on_window=lambda window: terminate() if window == 3 else None)
    with pytest.raises(Stopped) as caught:
        session.fit()
    assert caught.value.exit_code == EXIT_STOPPED == 75
    assert "stopped at update 4 of 10 after a checkpoint" in str(caught.value)
    assert saved(tmp_path) == [4]
    assert signal.getsignal(signal.SIGTERM) is before
    windows: list[int] = []
    state = Session(tmp_path, on_window=windows.append).fit()
    assert windows == [4, 5, 6, 7, 8, 9]
    assert (state.update, state.images_seen) == (10, 10 * IMAGES)


def test_sigterm_with_weights_that_are_not_finite_does_not_claim_a_checkpoint(tmp_path: Path) -> None:
    holder: list[Session] = []

    def on_window(window: int) -> None:
        holder[0].engine.weight = NAN
        terminate()

    holder.append(Session(tmp_path, on_window=on_window))
    with pytest.raises(Stopped, match="stopped at update 1 of 10 without a checkpoint"):
        holder[0].fit()
    assert saved(tmp_path) == []


@pytest.mark.parametrize("at", [5, 10])
def test_an_evaluation_cut_short_by_sigterm_is_owed(at: int, tmp_path: Path) -> None:
    """In the middle of the run, and at its end."""
    options = {"eval": {"every_epochs": 1}, "checkpoint": {"every_epochs": 1}}
    session = Session(tmp_path, on_evaluate=lambda update: terminate() if update == at else None, **options)
    with pytest.raises(Stopped):
        session.fit()
    assert session.heard.of("eval") == [update for update in (5, 10) if update < at]
    assert saved(tmp_path)[-1] == at
    resumed = Session(tmp_path, **options)
    resumed.fit()
    assert resumed.heard.of("eval") == [update for update in (5, 10) if update >= at]
    assert find_checkpoint(tmp_path, "best").name == checkpoint_name(10)


def test_an_evaluation_that_only_the_end_of_the_run_asks_for_is_owed_as_well(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Session(tmp_path, on_evaluate=lambda update: terminate()).fit()
    windows: list[int] = []
    resumed = Session(tmp_path, on_window=windows.append)
    resumed.fit()
    assert (windows, resumed.heard.of("eval")) == ([], [10])


def test_a_finished_run_does_nothing_when_it_is_run_again(tmp_path: Path) -> None:
    Session(tmp_path).fit()
    again = Session(tmp_path, on_window=lambda window: pytest.fail("trained"))
    assert again.fit().update == 10
    assert again.heard.of("eval") == []


# --- skipped fp16 steps -------------------------------------------------------------------------------------------


def test_skipped_steps_are_counted_apart_and_stretch_a_run_given_in_updates(tmp_path: Path) -> None:
    session = Session(tmp_path, skipped=frozenset({0, 1, 4}), train={"epochs": None, "max_updates": 6})
    state = session.fit()
    assert (state.update, state.window, state.images_seen) == (6, 9, 9 * IMAGES)
    assert session.heard.of("train", "skipped")[-1] == 3
    assert session.heard.of("train")[-1] == 6
    assert saved(tmp_path) == [6]


def test_skipped_steps_do_not_stretch_epochs(tmp_path: Path) -> None:
    state = Session(tmp_path, skipped=frozenset({0, 1, 4})).fit()
    assert (state.update, state.window) == (7, 10)
    windows: list[int] = []
    Session(tmp_path, on_window=windows.append).fit()  # resumed: the epochs are over, though 7 < 10
    assert windows == []


def test_a_skipped_step_between_two_checkpoints_writes_none_twice(tmp_path: Path) -> None:
    """Windows 3 and 4 end at the same update; the checkpoint of the second must not lose the first."""
    session = Session(tmp_path, skipped=frozenset({3}), checkpoint={"every_updates": 1})
    session.fit()
    assert saved(tmp_path) == list(range(1, 10))
