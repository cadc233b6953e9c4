"""The forecast of a network against the truth: two hosts with a slow link between them, after a probe of under 30 s."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from two_hosts import two_hosts, why_not

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
CASES = [[4, 1], [4, 4], [16, 1], [16, 2]]


@pytest.fixture(scope="module", params=[("100mbit", 0.10, 0.006), ("1gbit", 0.20, 0.004)], ids=lambda param: param[0])
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """What both hosts found, and the relative error that is allowed."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    rate, allowed, seconds = request.param
    folder = tmp_path_factory.mktemp("probe")
    (folder / "payload.json").write_text(
        json.dumps({"seconds_per_image": seconds, "micro": 8, "pairs": 3, "cases": CASES})
    )
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with two_hosts(rate) as hosts:
        hosts.run("probe_worker_slow", [str(folder)], folder, 500, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    return json.loads((folder / "result.json").read_text()), allowed


def test_the_probe_of_the_network_takes_under_30_s(truth: tuple[dict[str, Any], float]) -> None:
    assert truth[0]["profile"]["seconds"]["network"] < 30
    assert len(truth[0]["profile"]["all_reduce"]) >= 6


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_step_takes_as_long_as_predicted(truth: tuple[dict[str, Any], float], number: int) -> None:
    found, allowed = truth
    row = found["rows"][number]
    assert row["predicted"] == pytest.approx(row["measured"], rel=allowed), row


def test_backward_hides_what_is_predicted(truth: tuple[dict[str, Any], float]) -> None:
    """Not only the whole is right: so many seconds are spent waiting for the network, over all cases together. At
    1 Gbit/s a forecast that knew no overlap would say 30 % more."""
    found, allowed = truth
    told, seen = (sum(row[name] for row in found["rows"]) for name in ("predicted_exposed", "measured_exposed"))
    assert told == pytest.approx(seen, rel=allowed), found["rows"]


def test_the_break_even_batch_is_right_within_one_doubling(truth: tuple[dict[str, Any], float]) -> None:
    """At a quarter of it communication costs more than 5 % of the step, at twice of it less."""
    below, above = ((row["measured_exposed"] / row["measured"], row) for row in truth[0]["around"])
    assert below[0] > 0.05, below
    assert above[0] < 0.05, above


def test_the_command_joins_ranks_that_a_launcher_started_on_two_hosts(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)}
    with two_hosts("200mbit") as hosts:
        hosts.run("vitscale", ["env", "digits", "--probe", "--json", "--device", "cpu"], tmp_path, 200, env)
    assert (tmp_path / "rank1.stdout").read_text() == ""
    told = json.loads((tmp_path / "rank0.stdout").read_text())
    assert told["link"]["beta_bytes_per_s"] == pytest.approx(25e6, rel=0.1)
    assert len(told["profile"]["ranks"]) == 2
