"""From ranks' parts to one Attribution: when a trace is believed, and what is said where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timeline import FakeProfile, Timeline, ns

from vitscale.measure import shares
from vitscale.measure.shares import Findings, RankShares, share_out
from vitscale.measure.trace import Mark, Tracer
from vitscale.results.record import Attribution

PHASES_S = {"data_wait": 0.01, "host_to_device": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.08, "other": 0.01}


def gpu_tracer(*, late: float = 0.0) -> Tracer:
    """Two updates of 1 s: forward 0.3, backward 0.5 (its last 0.1 hidden all-reduce), all-reduce alone 0.15, optimizer
    0.05. This rank comes `late` seconds later to the all-reduce."""
    line = Timeline()
    tracer = Tracer(torch.device("cuda", 0))
    for index in range(2):
        t = index * 1e6
        line.kernel(t, t + 0.3e6, launched=t)
        line.kernel(t + 0.3e6, t + 0.8e6, launched=t + 1e3)
        line.nccl(t + (0.7 + late) * 1e6, t + 0.95e6, launched=t + 2e3)
        line.kernel(t + 0.95e6, t + 1e6, launched=t + 3e3)
        for phase, begin, end in (("forward", 0, 500), ("backward", 500, 2500), ("optimizer", 2500, 4000)):
            tracer.marks.append(Mark(phase, ns(t + begin), ns(t + end)))
        tracer.updates.append((ns(t), ns(t + 1e6)))
    line.synchronise(2e6, 2e6 + 50)
    tracer._profile = FakeProfile(line)
    tracer._synchronised = (ns(2e6), ns(2e6 + 50))
    return tracer


def part(tracer: Tracer | None, *, traced: float = 1.0) -> RankShares:
    return RankShares(PHASES_S, untraced=[1.0] * 20, traced=[traced] * 10 if tracer else [], tracer=tracer)


def together(parts: list[RankShares], *, cuda: bool = True) -> list[Findings]:
    """Runs share_out on every rank: each collective waits until all ranks have come to it."""
    import threading

    barrier = threading.Barrier(len(parts))
    slots: list[Any] = [None] * len(parts)
    found: list[Any] = [None] * len(parts)

    def rank(number: int) -> None:
        def gather(value: Any) -> list[Any]:
            slots[number] = value
            barrier.wait(10)
            values = list(slots)
            barrier.wait(10)
            return values

        found[number] = share_out(parts[number], gather, cuda=cuda, skip=0)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def valid(findings: Findings) -> Attribution:
    assert findings.attribution is not None
    return Attribution.model_validate({"updates": 2, **findings.attribution})


def test_two_gpus_with_a_straggler() -> None:
    first, second = together([part(gpu_tracer()), part(gpu_tracer(late=0.12))])
    assert first == second
    attribution = valid(first)
    assert attribution.method == "trace"
    assert attribution.unknown == {}
    # Rank 0 waits from 0.7 to 0.82, and is exposed from 0.8 on.
    assert attribution.by_rank[0]["straggler_wait"] == pytest.approx(0.02)
    assert attribution.by_rank[0]["exposed_comm"] == pytest.approx(0.13)
    assert attribution.by_rank[1]["straggler_wait"] == 0
    # Rank 1 has nothing to run from 0.8 to 0.82: its all-reduce is on its way, launched in backward.
    assert attribution.by_rank[1]["exposed_comm"] == pytest.approx(0.13)
    assert attribution.by_rank[1]["backward"] == pytest.approx(0.52)
    assert attribution.seconds["forward"] == pytest.approx(0.3)
    assert attribution.idle_s == pytest.approx(0.01)
    assert first.communication_s == pytest.approx((0.25 + 0.13) / 2)
    for rank in attribution.by_rank:
        assert sum(rank.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("traced", "believed"), [(1.029, True), (0.975, True), (1.031, False), (0.96, False)])
def test_a_trace_that_changed_what_it_looked_at_is_not_believed(traced: float, believed: bool) -> None:
    findings, _ = together([part(gpu_tracer(), traced=traced), part(gpu_tracer(), traced=2.0)])
    attribution = valid(findings)
    if believed:
        assert attribution.method == "trace"
        return
    assert attribution.method == "phases"
    assert set(attribution.unknown) == {"exposed_comm", "straggler_wait"}
    assert "limit is 3%" in attribution.unknown["exposed_comm"]
    assert "stays inside forward, backward and optimizer" in attribution.unknown["exposed_comm"]
    assert attribution.seconds == PHASES_S
    assert attribution.idle_s is None
    assert findings.communication_s is None


def test_one_gpu_whose_trace_is_not_believed_still_knows_its_phases() -> None:
    (findings,) = together([part(gpu_tracer(), traced=1.2)])
    attribution = valid(findings)
    assert attribution.unknown == {}
    assert attribution.seconds == {**PHASES_S, "exposed_comm": 0.0, "straggler_wait": 0.0}
    assert "20%" in attribution.warnings[0]


def test_several_hosts_have_several_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["one", "two"])
    monkeypatch.setattr(shares, "_host", lambda: next(names))
    findings, _ = together([part(gpu_tracer()), part(gpu_tracer(late=0.12))])
    attribution = valid(findings)
    assert attribution.method == "trace"
    assert "several hosts" in attribution.unknown["straggler_wait"]
    assert "straggler_wait" not in attribution.seconds
    assert attribution.by_rank[0]["exposed_comm"] == pytest.approx(0.15)


def test_a_rank_that_cannot_read_its_trace_hangs_nobody() -> None:
    broken = gpu_tracer()
    broken._profile = FakeProfile("no json")
    first, second = together([part(gpu_tracer()), part(broken)])
    assert first == second
    assert "cannot be read" in valid(first).unknown["exposed_comm"]


def test_an_unforeseen_failure_hangs_nobody_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(shares, "device_seconds", fail)
    first, _ = together([part(gpu_tracer()), part(gpu_tracer())])
    assert "ZeroDivisionError: bug" in valid(first).unknown["exposed_comm"]


def test_without_a_trace_it_is_said_so() -> None:
    first, _ = together([part(None), part(None)], cuda=False)
    assert "no updates were traced" in valid(first).unknown["straggler_wait"]
    assert valid(first).seconds == PHASES_S


def test_an_update_that_is_one_launch_has_no_inner_phases() -> None:
    """A whole-step CUDA graph; nothing inside it is told apart, whatever a trace would show."""
    phases = {"data_wait": 0.1, "host_to_device": 0.05, "forward": 0.01, "backward": 0.0, "optimizer": 0.02}
    own = RankShares({**phases, "step": 0.8, "other": 0.02}, [1.0] * 20, [], None)
    (findings,) = together([own])
    attribution = valid(findings)
    assert attribution.method == "phases"
    assert attribution.seconds == {"data_wait": 0.1, "host_to_device": 0.05, "step": 0.8, "other": pytest.approx(0.05)}
    assert set(attribution.unknown) == {"exposed_comm", "straggler_wait"}
    assert "the update is one launch" in attribution.unknown["exposed_comm"]
    assert attribution.warnings == ()


def test_a_loop_that_marks_no_parts_is_one_step_beside_its_communication() -> None:
    """The peers of a bench: what of a step is exposed communication, and how long the device starves, a trace tells."""
    tracer = gpu_tracer()
    tracer.marks = [Mark("step", mark.begin, mark.end) for mark in tracer.marks]
    phases = {**dict.fromkeys(PHASES_S, 0.0), "step": 0.99, "other": 0.01}
    first, _ = together([RankShares(phases, [1.0] * 20, [1.0] * 10, tracer)] * 2)
    attribution = valid(first)
    assert attribution.method == "trace"
    assert attribution.seconds["step"] == pytest.approx(0.85, abs=0.01)
    assert attribution.seconds["exposed_comm"] == pytest.approx(0.15, abs=0.01)
    assert "forward" not in attribution.seconds
    assert attribution.idle_s == pytest.approx(0, abs=0.01)


def test_the_events_inside_a_launch_divide_it() -> None:
    phases = {"data_wait": 0.1, "host_to_device": 0.05, "forward": 0.0, "backward": 0.0, "optimizer": 0.02, "step": 0.8}
    inside = {"forward": 0.25, "backward": 0.625, "optimizer": 0.125}
    own = RankShares({**phases, "other": 0.03}, [1.0] * 20, [1.0] * 10, gpu_tracer(), inside)
    (findings,) = together([own])
    attribution = valid(findings)
    assert attribution.method == "phases"
    assert attribution.seconds == pytest.approx(
        {
            "data_wait": 0.1, "host_to_device": 0.05, "forward": 0.2, "backward": 0.5, "optimizer": 0.12,
            "exposed_comm": 0.0, "straggler_wait": 0.0, "other": 0.03,
        }
    )  # fmt: skip
    assert attribution.unknown == {}
    first, _ = together([own, own])
    assert "the update is one launch" in valid(first).unknown["exposed_comm"]
    assert valid(first).seconds["backward"] == pytest.approx(0.5)


def test_a_trace_that_ended_early_says_little() -> None:
    own = RankShares(PHASES_S, [1.0] * 20, [1.0] * 4, gpu_tracer())
    first, _ = together([own, own])
    assert "only 4 updates were traced" in valid(first).unknown["exposed_comm"]
