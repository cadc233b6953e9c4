"""Pacing over two ranks played in one process: their parts add up, both decide alike, and what is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from vitscale.data.batch import UpdateBatch
from vitscale.distributed import World
from vitscale.engine.own_time import OwnForward
from vitscale.estimate.pace import OwnPace, Pace, Straggler
from vitscale.pacing import Balance, Pacing, State, as_tensor, balance_text, straggler_text, unknown_state

EVEN = OwnPace(Pace(0, 0.3), Pace(0, 0.1))
STEP_S = 5.0


class Timed:
    """An OwnTime whose forward takes this long for each image."""

    def __init__(self, per_image: float) -> None:
        self.per_image, self.images, self.asked = per_image, 0, 0

    def ask(self) -> None:
        self.asked += 1

    def take(self) -> OwnForward | None:
        return OwnForward(self.images, self.images * self.per_image) if self.images else None


class Loader:
    def __init__(self) -> None:
        self.shares: tuple[int, ...] | None = None

    def rebalance(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)


class Ranks:
    """Two ranks in lockstep."""

    def __init__(self, *per_image: float, balance: Balance | None = None, states: Sequence[State] = ()) -> None:
        self.timed = [Timed(seconds) for seconds in per_image]
        self.loaders = [Loader() for _ in per_image]
        states = states or [unknown_state] * len(per_image)
        self.pacings = [
            Pacing(own, World(rank, len(per_image), rank, torch.device("cpu")), (12, 12), 1, [loader], balance, state)  # type: ignore[arg-type]
            for rank, (own, loader, state) in enumerate(zip(self.timed, self.loaders, states, strict=True))
        ]
        self.update = 0

    def interval(self, updates: int = 2) -> list[list[dict[str, Any]]]:
        said = []
        for rank, pacing in enumerate(self.pacings):
            pacing.restart()
            self.timed[rank].images = pacing.shares[rank]
            micros: Any = (None, None)
            for _ in pacing.batches([UpdateBatch(micros, 24, 0, 0)] * updates):
                pass
            said.append(pacing.say())
        summed = torch.tensor(said).sum(dim=0).tolist()
        heard = [pacing.hear(summed, self.update + 1, STEP_S) for pacing in self.pacings]
        self.update += updates
        return heard


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in events]


def test_one_forward_per_interval_is_timed() -> None:
    ranks = Ranks(0.1, 0.1)
    ranks.interval(5)
    ranks.interval(5)
    assert [own.asked for own in ranks.timed] == [2, 2]


def test_one_process_says_and_hears_nothing() -> None:
    own: Any = Timed(0.1)
    pacing = Pacing(own, World(0, 1, 0, torch.device("cpu")), (12,), 1, [])
    assert len(list(pacing.batches([UpdateBatch((), 12, 0, 0)]))) == 1
    assert (own.asked, pacing.say(), pacing.hear([], 1, 1.0), pacing.rebalanced()) == (0, [], [], [])


def test_waiting_for_data_is_a_ranks_own_part() -> None:
    ranks = Ranks(0.01, 0.01)
    for pacing in ranks.pacings:
        pacing.restart()

    def slow() -> Any:
        import time

        for _ in range(2):
            time.sleep(0.05)
            yield UpdateBatch((), 24, 0, 0)

    list(ranks.pacings[1].batches(slow()))
    assert ranks.pacings[1].say()[5 + 2] == pytest.approx(0.05, rel=0.5)  # per update


def test_a_straggler_is_an_event_and_a_note() -> None:
    ranks = Ranks(0.1, 0.2, states=[unknown_state, lambda: (1350.0, 86.0)])
    ranks.interval()  # two updates
    heard = [ranks.interval() for _ in range(4)]
    assert heard[0] == [[], []]
    row, note = heard[1][0]
    # its own part: 2 micro-steps of 12 images, a forward and twice that for backward
    assert row == {
        "kind": "straggler", "rank": 1, "since": 1, "cost_s": pytest.approx(7.2), "step_s": STEP_S,
        "sm_clock_mhz": 1350.0, "temperature_c": 86.0,
    }  # fmt: skip
    assert note["kind"] == "note"
    assert note["text"].startswith("rank 1 has kept the others waiting since update 1: its own part of an update takes")
    assert note["text"].endswith("(its GPU: 1350 MHz, 86 °C)")
    assert heard[2:] == [[[], []], [[], []]]


def test_all_ranks_change_their_shares_at_the_same_interval() -> None:
    ranks = Ranks(0.1, 0.1, balance=Balance((EVEN, EVEN), None))
    for _ in range(4):
        assert ranks.interval() == [[], []]
    ranks.timed[1].per_image = 0.2
    changed: list[list[dict[str, Any]]] = []
    while not any(changed):
        ranks.interval()
        changed = [pacing.rebalanced() for pacing in ranks.pacings]
        assert ranks.update < 40
    assert changed[0] == changed[1]
    assert kinds(changed[0]) == ["balance", "note"]
    assert changed[0][0]["shares"] == [16, 8]
    assert changed[0][0]["gain"] == pytest.approx(0.5)
    assert "shares change from 12, 12 to 16, 8 images, about 50% faster" in changed[0][1]["text"]
    assert [pacing.shares for pacing in ranks.pacings] == [(16, 8)] * 2
    assert [loader.shares for loader in ranks.loaders] == [(16, 8)] * 2
    for _ in range(6):
        ranks.interval()
        assert [pacing.rebalanced() for pacing in ranks.pacings] == [[], []]


def test_where_shapes_are_fixed_it_is_said_once_and_nothing_changes() -> None:
    ranks = Ranks(0.1, 0.2, balance=Balance((EVEN, EVEN), "shapes are fixed"))
    heard = [event for _ in range(9) for event in ranks.interval()[0]]
    assert kinds(heard) == ["straggler", "note", "note"]
    assert (
        "shares of 16, 8 images would now make micro-steps about 50% faster; they stay 12, 12, since shapes are fixed"
        in heard[2]["text"]
    )
    assert ranks.pacings[0].rebalanced() == []


def test_without_auto_shares_stay() -> None:
    ranks = Ranks(0.1, 0.4)
    for _ in range(9):
        ranks.interval()
        assert ranks.pacings[0].rebalanced() == []


def test_nothing_timed_is_no_straggler() -> None:
    ranks = Ranks(0.1, 0.4)
    for own in ranks.timed:
        own.take = lambda: None  # type: ignore[method-assign]
    assert all(ranks.interval() == [[], []] for _ in range(9))


def test_sentences() -> None:
    slow = OwnPace(Pace(0, 0.6), Pace(0, 0.2))
    assert balance_text((16, 8), (EVEN, slow)) == (
        "balance: the ranks take 16, 8 images of each micro-step; alone they do 3.33, 1.67 images/s"
    )
    assert balance_text((16, 8)) == "balance: the ranks take 16, 8 images of each micro-step"
    assert straggler_text(Straggler(1, 30, 0.0123, 0.06)) == (
        "rank 1 has kept the others waiting since update 30: its own part of an update takes about 12.3 ms longer than "
        "theirs, of 60 ms"
    )


def test_numbers_take_the_type_of_the_losses() -> None:
    tensor = as_tensor([1.0, 0.0], torch.zeros(3, dtype=torch.float64))
    assert (tensor.dtype, tensor.tolist()) == (torch.float64, [1.0, 0.0])
    assert all(math.isnan(value) for value in unknown_state())
