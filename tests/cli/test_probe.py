"""`vitscale env --probe`: on two processes for real, its sentences, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from vitscale.cli.probe import Asked, rows, sentences
from vitscale.config.decide import decide
from vitscale.config.load import load_config
from vitscale.estimate.profile import AllReduce, Profile, RankProfile, StepTimes, forecast_of, spread

Run = Callable[..., CompletedProcess[str]]


@pytest.mark.dist
def test_two_processes_are_probed_and_the_profile_is_kept(vitscale: Run, tmp_path: Path) -> None:
    done = vitscale("env", "digits", "--probe", "-n", "2", "--json", "--device", "cpu", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    kept = list(tmp_path.glob("vitscale/profile-*.json"))
    assert len(kept) == 1
    profile = Profile.model_validate_json(kept[0].read_text())
    assert profile == Profile.model_validate(told["profile"])
    assert len(profile.ranks) == 2
    assert profile.backend == "gloo"
    assert profile.seconds["network"] < 30
    assert [one.num_bytes for one in profile.all_reduce[:3]] == [2**12, 2**14, 2**16]
    for rank in profile.ranks:
        assert [step.images for step in rank.steps] == [4, 16]
        assert rank.loader_images_per_s is not None
    assert told["prediction"]["step_s"] > 0
    assert any(one.startswith("limit: ") for one in told["sentences"])
    shown = vitscale("env", XDG_CACHE_HOME=str(tmp_path))
    assert "2 process(es), digits" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["env", "digits"], "CONFIG (digits) has a meaning with --probe only"),
        (["env", "-n", "2"], "--nproc (2) has a meaning with --probe only"),
        (["env", "digts", "--probe"], "did you mean digits?"),
        (["env", "digits", "train.micro_batch_size=-1", "--probe"], "train.micro_batch_size"),
        (["env", "--probe", "--device", "gpu"], "--device gpu is not one of cpu and cuda"),
    ],
)
def test_what_it_cannot_use_is_refused(vitscale: Run, arguments: list[str], part: str) -> None:
    done = vitscale(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert part in done.stderr


def test_nproc_inside_a_launcher_is_refused(vitscale: Run) -> None:
    inside = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = vitscale("env", "--probe", "-n", "2", **inside)
    assert done.returncode == 2
    assert "leave --nproc out" in done.stderr


def test_the_parent_of_a_probe_loads_no_torch() -> None:
    """All that runs in it before and after the ranks."""
    code = (
        "import sys, vitscale.study.runner; from vitscale.cli.probe import _ask; "
        "_ask('digits', [], 2, None, 'cpu'); "
        "heavy = {'torch', 'torchvision', 'timm', 'deepspeed', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- sentences --------------------------------------------------------------------------------------------------------


def rank(per_image: float, device: str = "cpu", noise: float = 0.0) -> RankProfile:
    steps = tuple(
        StepTimes(
            images=images,
            forward=spread([per_image * images, per_image * images * (1 + noise)]),
            backward=spread([2 * per_image * images]),
            optimizer=spread([0.001]),
        )
        for images in (4, 16)
    )
    rate = spread([1e9, 2e9, 3e9])
    return RankProfile(host="a", device=device, matrix_flops={"fp32": rate}, copy_bytes_per_s=rate, steps=steps)


def told(*ranks: RankProfile, beta: float = 1e7, changes: tuple[str, ...] = ()) -> str:
    sizes = (2**16, 2**18, 2**20)
    points = tuple(AllReduce(num_bytes=size, seconds=spread([size / beta])) for size in sizes)
    profile = Profile(made_at="now", backend="gloo", config="digits", ranks=ranks, all_reduce=points)
    config = load_config("digits", ["train.global_batch_size=none", "train.micro_batch_size=16", *changes])
    decisions = decide(config, world_size=len(ranks), device_type="cpu")
    asked = Asked(config, decisions, "digits", "cpu", given=True)
    return "\n".join(sentences(asked, profile, forecast_of(profile, config, decisions)))


def test_a_slow_network_is_the_limit_and_the_way_out_is_said() -> None:
    text = told(rank(0.001), rank(0.001))
    assert "limit: the network" in text
    assert "communication falls under 5 % of the step from train.micro_batch_size=" in text
    assert "train.grad_accum_steps=" in text
    assert "the network costs more than rank 1 (cpu) would bring; 1 alone" in text


def test_equal_ranks_with_a_good_network_are_all_worth_having() -> None:
    text = told(rank(0.01), rank(0.01), beta=1e9)
    assert "limit: the device" in text
    assert "every rank is worth having" in text


def test_a_rank_that_costs_more_than_it_brings_is_named() -> None:
    text = told(rank(0.01), rank(0.01), rank(0.2, "Tesla P4"), beta=1e9)
    assert "limit: the device" in text
    assert "leave out rank 2 (Tesla P4)" in text
    assert "the other 2 alone" in text


def test_an_engine_that_is_not_modelled_gets_an_upper_bound() -> None:
    text = told(rank(0.01), rank(0.01), changes=("parallel.engine=fsdp2",))
    assert "predicted: at most" in text
    assert "upper bound" in text


def test_a_busy_machine_is_doubted() -> None:
    assert "something else" in told(rank(0.01, noise=1.0), rank(0.01))
    assert "something else" not in told(rank(0.01), rank(0.01))


def test_every_figure_stands_with_its_spread() -> None:
    profile = Profile(made_at="now", backend="none", config="digits", ranks=(rank(0.01),), seconds={"devices": 1.0})
    table = dict(rows(profile))
    assert table["  matrix products fp32"] == "2 GFLOP/s (1 to 3)"
    assert table["  step of 16 images"].startswith("forward 160 ms (160 to 160), backward 320 ms")
