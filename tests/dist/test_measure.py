"""Known truth on 2 gloo processes: what is slowed on purpose lands in its own phase, within a tenth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitscale.results.record import PHASES, Attribution, Measurement
from vitscale.study.case import Job, save_payload
from vitscale.study.runner import run_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(200)]
HERE = Path(__file__).parent
SLEEPS = {
    "data_wait": 0.050,
    "host_to_device": 0.040,
    "forward": 0.060,
    "optimizer": 0.050,
    "straggler_wait": 0.100,
}
NOISE_S = 0.003


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("measure")
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    payload = {"sleeps": SLEEPS, "num_bytes": 2**25}
    job = Job("known-truth", "measure_worker", payload, 2, timeout_s=150, env={"PYTHONPATH": path})
    outcome = run_job(job, folder)
    assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
    assert outcome.result is not None
    return outcome.result


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", ["data_wait", "host_to_device", "forward", "optimizer"])
def test_a_slowed_phase_is_slow(measured: dict[str, Any], phase: str, rank: int) -> None:
    truth = measured["truth"][rank][phase]
    assert truth > SLEEPS[phase]
    found = measured["measurement"]["attribution"]["by_rank"][rank][phase]
    assert found == pytest.approx(truth, rel=0.1, abs=NOISE_S)


def test_who_waits_for_a_straggler_says_so(measured: dict[str, Any]) -> None:
    waited, own = (truth["collective"] for truth in measured["truth"])  # the last one to come waits for nobody
    assert waited - own > 0.5 * SLEEPS["straggler_wait"]
    assert measured["traced"][0]["straggler_wait"] == pytest.approx(waited - own, rel=0.1, abs=NOISE_S)
    assert measured["traced"][1]["straggler_wait"] < 0.1 * SLEEPS["straggler_wait"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_collective_that_nothing_hides_is_exposed_communication(measured: dict[str, Any], rank: int) -> None:
    own = measured["truth"][1]["collective"]
    assert own > 0.005  # so many bytes take a while
    assert measured["traced"][rank]["exposed_comm"] == pytest.approx(own, rel=0.1, abs=NOISE_S)


def test_communication_is_taken_out_of_backward_in_the_proportion_of_the_trace(measured: dict[str, Any]) -> None:
    attribution = Attribution.model_validate(measured["measurement"]["attribution"])
    assert attribution.method == "trace", attribution.unknown
    for part, traced in zip(attribution.by_rank, measured["traced"], strict=True):
        assert part["exposed_comm"] > 0.5 * traced["exposed_comm"]
    assert attribution.by_rank[0]["straggler_wait"] > 10 * attribution.by_rank[1]["straggler_wait"]
    # The straggler's own sleep is its backward, as far as the meter can tell.
    assert attribution.by_rank[1]["backward"] > SLEEPS["straggler_wait"]
    assert attribution.by_rank[0]["backward"] < SLEEPS["straggler_wait"]


def test_the_parts_sum_to_the_wall_time_of_the_counted_updates(measured: dict[str, Any]) -> None:
    result = Measurement.model_validate(measured["measurement"])
    assert result.attribution is not None
    assert set(result.attribution.seconds) == set(PHASES)
    whole = sum(result.attribution.by_rank[0].values())
    assert whole == pytest.approx(sum(result.step_time_s) / len(result.step_time_s), rel=1e-6)


def test_each_rank_brings_its_memory_and_one_time_line_is_kept(measured: dict[str, Any]) -> None:
    result = Measurement.model_validate(measured["measurement"])
    assert len(result.peak_rss_bytes) == 2
    assert min(result.peak_rss_bytes) > 100e6
    assert result.images == (32,) * 10
    assert len(result.warmup_step_time_s) == 2
    assert len(result.attribution.traced_step_time_s) == 10 if result.attribution else False


def may_slow_links() -> bool:
    """Network namespaces and traffic control take root and their tools, which containers may not have."""
    script = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 400ms"
    try:
        return subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def test_a_slow_link_is_exposed_communication(tmp_path: Path) -> None:
    """Two ranks over a loopback of 1 Gbit/s: all that both send passes through it."""
    if not may_slow_links():
        pytest.skip("network namespaces cannot be made here")
    num_bytes = 2**23
    save_payload(tmp_path, {"sleeps": dict.fromkeys(SLEEPS, 0.0), "num_bytes": num_bytes})
    command = ["unshare", "-n", "sh", str(HERE / "slow_link.sh"), "1gbit"]
    command += [sys.executable, str(HERE / "slow_link.py"), str(tmp_path)]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=180)
    assert done.returncode == 0, done.stderr
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["kind"] == "ok", (outcome["sentence"], outcome["stderr_tail"])
    link_s = 2 * num_bytes / 125e6  # each rank sends 2 (n - 1) / n of the tensor
    for rank in (0, 1):
        told = outcome["result"]["traced"][rank]
        assert told["exposed_comm"] + told["straggler_wait"] == pytest.approx(link_s, rel=0.1)
    attribution = outcome["result"]["measurement"]["attribution"]
    assert attribution["seconds"]["exposed_comm"] > 0.5 * sum(attribution["seconds"].values())


# --- communication volume ---------------------------------------------------------------------------------------------

ZERO3 = "deepspeed.zero_optimization.stage3_param_persistence_threshold=2000"  # some tensors above it, some below


@pytest.mark.parametrize(
    "engine",
    [
        ["parallel.engine=ddp"],
        ["parallel.engine=fsdp2"],
        ["parallel.engine=deepspeed", "parallel.zero_stage=2"],
        ["parallel.engine=deepspeed", "parallel.zero_stage=3", ZERO3],
    ],
    ids=["ddp", "fsdp2", "zero2", "zero3"],
)
def test_bytes_per_update_are_those_of_the_closed_form(engine: list[str], tmp_path: Path) -> None:
    changes = [*engine, "train.max_updates=5", "train.micro_batch_size=8", "eval.every_epochs=none"]
    job = Job("volume", "volume_worker", {"changes": changes}, 2, timeout_s=120, env={"PYTHONPATH": str(HERE)})
    outcome = run_job(job, tmp_path)
    assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
    assert outcome.result is not None
    assert outcome.result["closed"] > 500_000
    assert outcome.result["measured"] == pytest.approx(outcome.result["closed"], rel=0.01)
