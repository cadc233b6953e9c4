"""Pacing: what each rank needs for its own part of the updates, heard by all once per log interval, and what follows.

In: one timed forward per interval, the time that this rank waited for data, its GPU's clock and temperature. They ride
with the losses that the ranks add up anyway: no exchange and no wait of their own. Out: other shares of a micro-step
(parallel.balance=auto), and word of a rank that the others wait for. Every rank hears the same numbers in the same
order, so all come to the same decision at the same update. The arithmetic is estimate.pace's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from vitscale.data.batch import UpdateBatch
from vitscale.distributed import World
from vitscale.engine.own_time import OwnTime
from vitscale.estimate.pace import OwnPace, Proposal, Rebalancer, Straggler, StragglerWatch, own_update_s

Event = dict[str, Any]
State = Callable[[], tuple[float, float]]
"""(clock in MHz, temperature in degrees Celsius) of this rank's GPU now; NaN where nobody tells."""


class _Part(NamedTuple):
    """What one rank says of an interval; zeros: nothing was timed."""

    images: float
    forward_s: float
    data_s: float
    clock_mhz: float
    temperature_c: float


class Shared(Protocol):
    """A loader whose images the ranks share."""

    def rebalance(self, shares: Sequence[int]) -> None:
        """Share in this proportion from the next iteration on."""
        ...


def unknown_state() -> tuple[float, float]:
    """Where no GPU tells of itself."""
    return math.nan, math.nan


@dataclass(frozen=True)
class Balance:
    """What parallel.balance=auto needs: the paces measured at the start, by rank. fixed: why shares cannot change
    during the run, None if they can."""

    paces: tuple[OwnPace, ...]
    fixed: str | None


class Pacing:
    """One rank's view of all ranks. With one process there is nothing to hear."""

    def __init__(
        self,
        own_time: OwnTime,
        world: World,
        shares: Sequence[int],
        unit: int,
        loaders: Sequence[Shared],
        balance: Balance | None = None,
        state: State = unknown_state,
    ) -> None:
        self.shares = tuple(shares)
        self._own, self._world, self._unit, self._loaders = own_time, world, unit, loaders
        self._balance, self._state = balance, state
        self._rebalancer = Rebalancer(balance.paces, shares, unit) if balance else None
        self._watch = StragglerWatch()
        self._data_s = 0.0
        self._updates = 0
        self._micro_steps = 1
        self._next: Proposal | None = None
        self._hinted = False

    # --- during an interval ---------------------------------------------------------------------------------------

    def batches(self, batches: Iterable[UpdateBatch]) -> Iterator[UpdateBatch]:
        """The batches, and how long this rank waits for them; the first update of an interval is timed."""
        begin = time.monotonic()
        for batch in batches:
            self._data_s += time.monotonic() - begin
            if not self._updates and self._several:
                self._own.ask()
                self._micro_steps = len(batch.micro_batches)
            self._updates += 1
            yield batch
            begin = time.monotonic()

    @property
    def _several(self) -> bool:
        return self._world.world_size > 1

    # --- at its end -----------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Begin an interval."""
        self._data_s, self._updates = 0.0, 0

    def say(self) -> list[float]:
        """This rank's part of the interval among zeros for all others: the sum over ranks has every part."""
        if not self._several:
            return []
        own = self._own.take()
        data_s = self._data_s / max(1, self._updates)
        clock, temperature = self._state()
        part = _Part(own.images if own else 0.0, own.seconds if own else 0.0, data_s, clock, temperature)
        told = [0.0 if math.isnan(value) else value for value in part]
        before = self._world.rank * len(part)
        return [0.0] * before + told + [0.0] * ((self._world.world_size - 1) * len(part) - before)

    def hear(self, numbers: Sequence[float], first_update: int, step_s: float) -> list[Event]:
        """All ranks' parts of an interval, as summed; returns what is to be told, flat rows with a `kind`."""
        if not numbers:
            return []
        width = len(_Part._fields)
        parts = [_Part(*numbers[at : at + width]) for at in range(0, len(numbers), width)]
        events = self._straggling(parts, first_update, step_s)
        if self._rebalancer is not None and self._next is None:
            self._next = self._rebalancer.hear([round(p.images) for p in parts], [p.forward_s for p in parts])
            if self._next is not None and self._balance is not None and self._balance.fixed:
                events += self._hint(self._next, self._balance.fixed)
                self._next = None
        return events

    def _straggling(self, parts: Sequence[_Part], first_update: int, step_s: float) -> list[Event]:
        paces = self._balance.paces if self._balance else (None,) * len(parts)
        own = [
            own_update_s(part.images, part.forward_s, part.data_s, self._micro_steps, pace)
            if part.forward_s > 0 and round(part.images) == share  # a short micro-batch says little
            else math.nan
            for part, pace, share in zip(parts, paces, self.shares, strict=True)
        ]
        found = self._watch.hear(first_update, own, step_s)
        if found is None:
            return []
        part = parts[found.rank]
        row: Event = {"kind": "straggler", **found._asdict()}
        row["sm_clock_mhz"], row["temperature_c"] = part.clock_mhz or None, part.temperature_c or None
        return [row, {"kind": "note", "text": straggler_text(found, part.clock_mhz, part.temperature_c)}]

    def _hint(self, proposal: Proposal, why: str) -> list[Event]:
        if self._hinted:
            return []
        self._hinted = True
        text = (
            f"shares of {_listed(proposal.shares)} images would now make micro-steps about {proposal.gain:.0%} faster; "
            f"they stay {_listed(self.shares)}, since {why}; resume the run to measure anew"
        )
        return [{"kind": "note", "text": text}]

    def rebalanced(self) -> list[Event]:
        """Change the shares if it was decided; the loaders' next iteration is by the new ones. Empty if not."""
        if self._next is None or self._rebalancer is None:
            return []
        shares, gain = self._next
        before, self._next = self.shares, None
        self.shares = shares
        self._rebalancer.change(shares)
        for loader in self._loaders:
            loader.rebalance(shares)
        text = f"balance: shares change from {_listed(before)} to {_listed(shares)} images, about {gain:.0%} faster"
        return [{"kind": "balance", "shares": list(shares), "gain": gain}, {"kind": "note", "text": text}]


def balance_text(shares: Sequence[int], paces: Sequence[OwnPace] = ()) -> str:
    """The shares that a run begins with, and the speeds that they come from, where those were measured."""
    text = f"balance: the ranks take {_listed(shares)} images of each micro-step"
    if not paces:
        return text
    rates = [images / pace.whole.seconds(images) for images, pace in zip(shares, paces, strict=True)]
    return f"{text}; alone they do {_rates(rates)} images/s"


def straggler_text(found: Straggler, clock_mhz: float = 0.0, temperature_c: float = 0.0) -> str:
    """One sentence: who, since when, at what cost, and what its GPU says."""
    text = (
        f"rank {found.rank} has kept the others waiting since update {found.since}: its own part of an update takes "
        f"about {1e3 * found.cost_s:.3g} ms longer than theirs, of {1e3 * found.step_s:.3g} ms"
    )
    device = [f"{clock_mhz:.0f} MHz"] if clock_mhz else []
    device += [f"{temperature_c:.0f} °C"] if temperature_c else []
    return text + (f" (its GPU: {', '.join(device)})" if device else "")


def as_tensor(numbers: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """On the device and in the type of `like`, without waiting for the device."""
    tensor = torch.tensor(numbers, dtype=like.dtype)
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor


def _listed(shares: Sequence[int]) -> str:
    return ", ".join(map(str, shares))


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}" for rate in rates)
