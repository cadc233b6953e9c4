"""distributed: how a group is left. What a World does among real ranks is in tests/dist/test_engines.py."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist

from vitscale import distributed


class Group(dist.ProcessGroup):
    """Stands for a control group; there are no other ranks."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A group of two ranks that exists by name only; what is called at its end."""
    calls: list[str] = []
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)

    def group(**_: Any) -> dist.ProcessGroup:
        return Group(1, 2)

    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(dist, "barrier", lambda **_: calls.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    return calls


def leave(monkeypatch: pytest.MonkeyPatch, device: str, error: Exception | None) -> None:
    monkeypatch.setattr(distributed, "pick_device", lambda *_: torch.device(device))
    with contextlib.suppress(ZeroDivisionError), distributed.joined(None, group=True):
        if error is not None:
            raise error


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_ranks_wait_for_each_other_before_the_group_ends(
    left: list[str], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    leave(monkeypatch, device, None)
    assert left == ["barrier", "destroy"]


@pytest.mark.parametrize(("device", "calls"), [("cpu", ["destroy"]), ("cuda:1", [])])
def test_a_rank_that_fails_waits_for_nobody(
    left: list[str], monkeypatch: pytest.MonkeyPatch, device: str, calls: list[str]
) -> None:
    """Ending an NCCL group would wait for ranks that sit in a collective."""
    leave(monkeypatch, device, ZeroDivisionError())
    assert left == calls
