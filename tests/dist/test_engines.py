"""Every engine on 2 gloo processes, judged by hand-made figures and by engine single: EMA, precision, clipping,
groups, freezing, optimizers, dropout, evaluation, and what a World promises. One group per engine runs all its checks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_list import ENGINES
import torch
from engine_making import (
    FREEZING,
    GROUPS,
    LAMB,
    MUON,
    SGD,
    SINGLE,
    Tensors,
    config_of,
    distance,
    engine_of,
    eval_loader,
    model_of,
    reference,
)
from safetensors.torch import load_file

from vitscale.evaluate import evaluate
from vitscale.study.case import Job, Outcome
from vitscale.study.runner import run_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
EVERYWHERE = (
    "ema", "ema_bf16", "masters", "clipping", "checkpointing", "groups", "freezing", "freezing_bf16", "dropout",
    "counting", "changed",
)  # fmt: skip
NATIVE = (*EVERYWHERE, "autocast", "fp16")
CHECKS = {
    "ddp": (*NATIVE, "lamb", "muon", "world", "stopping"),
    "fsdp2": NATIVE,
    "zero0": (*EVERYWHERE, "autocast", "lamb", "muon", "other_layout", "quiet", "resumed_bf16"),
    "zero1": (*EVERYWHERE, "autocast", "momentum", "other_layout", "quiet", "resumed_bf16"),
    "zero2": ("ema", "clipping", "groups", "momentum", "quiet"),
    "zero3": (*EVERYWHERE, "autocast", "momentum", "quiet", "compiled"),
}


RESUMED = ("lamb", "muon", "momentum", "resumed_bf16")


def with_check(name: str) -> list[str]:
    return [engine for engine in ENGINES if name in CHECKS[engine]]


class Groups:
    """Runs an engine's group at the first question about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, Outcome] = {}

    def saved(self, engine: str, check: str) -> Tensors:
        return load_file(self.folder / engine / f"{check}.safetensors")

    def __call__(self, engine: str, check: str) -> Any:
        if engine not in self.outcomes:
            payload = {"parallel": ENGINES[engine], "checks": CHECKS[engine]}
            path = os.pathsep.join([str(HERE), str(HERE.parent / "engine"), os.environ.get("PYTHONPATH", "")])
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


# The reference runs in this process, on engine single.
# Muon orthogonalises in bf16: a gradient that differs by 1e-6 moves its step by 1e-2.
AS_SINGLE = {"groups": (GROUPS, 1e-5), "freezing": (FREEZING, 1e-5), "lamb": (LAMB, 1e-4), "muon": (MUON, 3e-2)}


@pytest.fixture(scope="module")
def singles() -> dict[str, tuple[list[float], Tensors]]:
    return {check: reference(accum=2, **sections) for check, (sections, _) in AS_SINGLE.items()}


@pytest.mark.parametrize(("check", "engine"), [(check, engine) for check in AS_SINGLE for engine in with_check(check)])
def test_as_engine_single(check: str, engine: str, groups: Groups, singles: Any) -> None:
    losses, weights = singles[check]
    found = groups(engine, check)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert distance(groups.saved(engine, check), weights) < AS_SINGLE[check][1]


@pytest.mark.parametrize(
    ("check", "engine"), [(check, engine) for check in ("lamb", "muon") for engine in with_check(check)]
)
def test_each_rank_makes_the_same_step(check: str, engine: str, groups: Groups) -> None:
    first, second = groups(engine, check)["local"]
    assert first == second


def frozen(name: str) -> bool:
    return name.startswith(("patch_embed.", "pos_embed", "blocks.0."))


@pytest.mark.parametrize("engine", with_check("freezing"))
def test_frozen_weights_keep_every_bit_and_have_no_state(engine: str, groups: Groups) -> None:
    states = groups(engine, "freezing")["states"]
    start = model_of(config_of(SINGLE)).state_dict()
    for name, tensor in groups.saved(engine, "freezing").items():
        assert torch.equal(tensor, start[name]) == frozen(name), name
        assert (name in states) != frozen(name), name


@pytest.mark.parametrize("engine", with_check("freezing_bf16"))
def test_frozen_weights_below_fp32(engine: str, groups: Groups) -> None:
    """The native engines keep their fp32 values; DeepSpeed has only the rounded ones."""
    found = groups(engine, "freezing_bf16")
    assert found["dtypes"] == ["torch.float32"]
    assert (found["exact"], found["rounded"]) == ((False, True) if engine.startswith("zero") else (True, False))
    assert not found["trained_too"]


@pytest.mark.parametrize(
    ("check", "engine"), [(check, engine) for check in RESUMED for engine in with_check(check)]
)
def test_resumes_bit_for_bit(check: str, engine: str, groups: Groups) -> None:
    found = groups(engine, check)
    assert found["update"] == 3
    assert found["loaded"] == found["went_on"]


@pytest.mark.parametrize("engine", with_check("momentum"))
def test_momentum_of_another_number_of_processes_is_refused_on_every_rank(engine: str, groups: Groups) -> None:
    expected = (
        "CheckpointError: the checkpoint of 4 processes cannot be resumed with 2: DeepSpeed's universal checkpoint "
        "knows only fp32, exp_avg and exp_avg_sq, and the run uses optim.name=sgd"
    )
    assert groups(engine, "momentum")["sentences"] == [expected, expected]


@pytest.mark.parametrize("engine", with_check("changed"))
def test_a_resumed_run_has_its_own_clipping_and_weight_decay(engine: str, groups: Groups) -> None:
    """And not those of the checkpoint, which DeepSpeed's loading brings along."""
    assert groups(engine, "changed")["moved"] == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.parametrize("engine", with_check("other_layout"))
def test_states_of_another_precision_are_refused_on_every_rank(engine: str, groups: Groups) -> None:
    sentences = groups(engine, "other_layout")["sentences"]
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith("CheckpointError: the checkpoint holds DeepSpeed's state of SGD over fp32 weights")
        kept = "fp32 masters of " if engine == "zero0" else ""  # there vitscale's optimizer keeps them
        assert f"this run needs SGD over {kept}bf16 weights" in sentence


@pytest.mark.parametrize("engine", with_check("quiet"))
def test_an_update_of_deepspeed_does_not_wait_for_the_device(engine: str, groups: Groups) -> None:
    """Each read of a value and each wait empties a GPU's queue. Stage 3 always computes the norm and looks at it."""
    found = groups(engine, "quiet")
    assert found["waits"] == 0
    assert found["checks"] == 0
    if engine != "zero3":
        assert (found["reads"], found["norms"], found["told"]) == (0, 0, False)
    else:
        assert found["reads"] == 1


@pytest.mark.parametrize("engine", with_check("compiled"))
def test_compiled_blocks_are_one_graph_between_the_hooks(engine: str, groups: Groups) -> None:
    found = groups(engine, "compiled")
    assert (found["graphs"], found["breaks"]) == (1, 0)
    losses, weights = reference(updates=4, optim=SGD)
    assert found["losses"] == pytest.approx(losses, rel=1e-6)
    assert distance(groups.saved(engine, "compiled"), weights) < 1e-5


@pytest.mark.parametrize("engine", with_check("dropout"))
def test_dropout_is_a_function_of_seed_update_and_rank(engine: str, groups: Groups) -> None:
    found = groups(engine, "dropout")
    assert found["same"] == found["first"]  # though torch's own generators differed
    assert found["first"][0] != found["first"][1]  # the ranks had the same images
    assert found["later"] != found["first"]
    assert found["first"] == groups("ddp", "dropout")["first"]  # and of nothing else


@pytest.mark.parametrize("engine", with_check("autocast"))
def test_autocast_keeps_fp32_weights_and_computes_in_bf16(engine: str, groups: Groups) -> None:
    found = groups(engine, "autocast")
    assert (found["outputs"], found["weights"]) == (["torch.bfloat16"], ["torch.float32"])
    losses, weights = reference(optim=SGD)
    assert found["losses"] == pytest.approx(losses, rel=1e-2)
    assert 1e-5 < distance(groups.saved(engine, "autocast"), weights) < 0.1


@pytest.mark.parametrize("engine", with_check("fp16"))
def test_an_overflow_on_one_rank_skips_the_step_on_all(engine: str, groups: Groups) -> None:
    found = groups(engine, "fp16")
    applied, updates, scales = found["ranks"][0]
    assert found["ranks"][1] == [applied, updates, scales]
    assert (applied, updates) == ([False, True], [0, 1])
    assert scales == [scales[0], scales[0] / 2, scales[0] / 2]  # at first, after the skip, of an engine that loaded
    assert found["kept"] == 0.0
    _, weights = reference(updates=1, optim={**SGD, "clip_grad": 1.0})
    assert distance(groups.saved(engine, "fp16"), weights) < 1e-2


@pytest.mark.parametrize("engine", with_check("counting"))
def test_evaluation_counts_each_sample_once(engine: str, groups: Groups) -> None:
    single = engine_of(config_of(SINGLE, model={"num_classes": 10}))
    with single.evaluating():
        expected = evaluate(single.eval_forward, eval_loader(), 10)
    assert expected is not None
    first, second = groups(engine, "counting")
    assert first == second
    assert first["num_samples"] == sum(map(sum, first["confusion"])) == 37
    assert first["confusion"] == expected.confusion.tolist()
    assert first["loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert (first["top1"], first["top5"]) == (expected.top1, expected.top5)


def test_what_rank_0_refuses_all_ranks_refuse(groups: Groups) -> None:
    assert groups("ddp", "world")["heard"] == ["DataError: only rank 0 looked"] * 2


def test_where_rank_0_crashes_no_rank_waits_for_it(groups: Groups) -> None:
    assert groups("ddp", "world")["crashed"] == [
        "ZeroDivisionError: nobody thought of it",
        "RunFailed: rank 0 failed: ZeroDivisionError: nobody thought of it",
    ]


def test_what_rank_0_does_all_ranks_know(groups: Groups) -> None:
    found = groups("ddp", "world")
    assert found["main"] == [True, False]
    assert found["on_main"][0] == found["on_main"][1]
    assert found["broadcast"] == [{"rank": 0}, {"rank": 0}]
    assert found["any"] == [[True, False], [True, False]]
    assert found["sum"] == [3.0, 3.0]


def test_all_ranks_stop_at_the_same_update(groups: Groups) -> None:
    found = groups("ddp", "stopping")
    assert found["answers"] == [[False] * 4 + [True] * 4] * 2  # asked before poll 3, known to all at poll 4
    assert found["given_back"]
