"""Every engine on 2 gloo processes, judged by hand-made figures and by engine single: EMA, precision, clipping,
groups, freezing, optimizers, dropout, evaluation, and what a World promises. One group per engine runs all its checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_making import FREEZING, GROUPS, LAMB, MUON, SGD, SINGLE, config_of, distance, engine_of, eval_loader, reference
from safetensors.torch import load_file

from vitscale.evaluate import evaluate
from vitscale.study.case import Job, Outcome
from vitscale.study.runner import run_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "fsdp2": {"engine": "fsdp2"},
    "zero0": {"engine": "deepspeed", "zero_stage": 0},
    "zero1": {"engine": "deepspeed", "zero_stage": 1},
    "zero2": {"engine": "deepspeed", "zero_stage": 2},
    "zero3": {"engine": "deepspeed", "zero_stage": 3},
}
EVERYWHERE = (
    "ema", "ema_bf16", "masters", "clipping", "checkpointing", "groups", "freezing", "freezing_bf16", "dropout",
    "counting",
)  # fmt: skip
NATIVE = (*EVERYWHERE, "autocast", "fp16")
CHECKS = {
    "ddp": (*NATIVE, "lamb", "muon", "world", "stopping"),
    "fsdp2": NATIVE,
    "zero0": (*EVERYWHERE, "autocast", "lamb", "muon"),
    "zero1": (*EVERYWHERE, "autocast", "momentum"),
    "zero2": ("ema", "clipping", "groups", "momentum"),
    "zero3": (*EVERYWHERE, "autocast", "momentum"),
}


def with_check(name: str) -> list[str]:
    return [engine for engine in ENGINES if name in CHECKS[engine]]


class Groups:
    """Runs an engine's group at the first question about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}

    def __call__(self, engine: str, check: str) -> Any:
        if engine not in self.outcomes:
            payload = {"parallel": ENGINES[engine], "checks": CHECKS[engine]}
            path = f"{HERE}:{HERE.parent / 'engine'}"
            job = Job(engine, "engine_worker", payload, 2, timeout_s=500, env={"PYTHONPATH": path})
            self.outcomes[engine] = run_job(job, self.folder / engine)
        outcome = self.outcomes[engine]
        assert outcome.kind == "ok", (outcome.sentence, outcome.stderr_tail)
        assert outcome.result is not None
        return outcome.result[check]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Groups:
    return Groups(tmp_path_factory.mktemp("engines"))


@pytest.mark.parametrize("engine", with_check("ema"))
def test_ema_under_sharding(engine: str, groups: Groups) -> None:
    found = groups(engine, "ema")
    assert found["hand"] < 1e-6
    assert found["in_place"] < 1e-5
    assert found["plain"] < 1e-5
    assert found["differ"] > 1e-3
    assert found["restored"]
    assert (found["weights"], found["average"]) == (0.0, 0.0)
    assert found["next"][0] == found["next"][1]


@pytest.mark.parametrize("engine", with_check("ema_bf16"))
def test_ema_of_fp32_masters(engine: str, groups: Groups) -> None:
    found = groups(engine, "ema_bf16")
    assert found["dtypes"] == ["torch.float32"]
    assert found["hand"] < 1e-6
    assert found["in_place"] < 5e-2  # the forward is bf16's
    assert found["restored"]
    assert (found["weights"], found["average"]) == (0.0, 0.0)
    assert found["next"][0] == found["next"][1]


@pytest.mark.parametrize("engine", with_check("masters"))
def test_bf16_weights_have_masters_that_move_by_less_than_bf16_can_say(engine: str, groups: Groups) -> None:
    found = groups(engine, "masters")
    assert found["dtype"] == "torch.float32"
    assert 0 < found["largest"] < 2.1e-5
    assert found["moved"] > 0.9
    assert found["visible"] < 0.5


@pytest.mark.parametrize("engine", with_check("clipping"))
def test_the_reported_norm_is_the_true_one_and_the_step_is_clipped_to_the_limit(engine: str, groups: Groups) -> None:
    found = groups(engine, "clipping")
    for name, moved in (("off", found["true"]), ("loose", found["true"]), ("tight", 1e-2)):
        assert found[name]["moved"] == pytest.approx(moved, rel=1e-4), name
        norms = found[name]["norms"]
        assert norms[0] == norms[1]
        if name != "off":
            assert norms[0] == pytest.approx(found["true"], rel=1e-5), name
    assert found["off"]["norms"][0] in (None, pytest.approx(found["true"], rel=1e-5))


@pytest.mark.parametrize("engine", with_check("checkpointing"))
def test_checkpointing_gives_the_same_update(engine: str, groups: Groups) -> None:
    found = groups(engine, "checkpointing")
    assert found["losses"][1] == pytest.approx(found["losses"][0], rel=1e-6)
    assert found["weights"] < 1e-6


@pytest.mark.parametrize(
    ("check", "sections", "bound"),
    [("groups", GROUPS, 1e-5), ("freezing", FREEZING, 1e-5), ("lamb", LAMB, 1e-4), ("muon", MUON, 1e-3)],
)
def test_as_engine_single(check: str, sections: dict[str, Any], bound: float, groups: Groups, subtests: Any) -> None:
    losses, weights = reference(accum=2, **sections)
    for engine in with_check(check):
        found = groups(engine, check)
        assert found["losses"] == pytest.approx(losses, rel=1e-5), engine
        assert distance(load_file(groups.folder / engine / f"{check}.safetensors"), weights) < bound, engine


