"""Resume, for every engine: after SIGKILL at a random update, at the same layout and from 4 to 2 and 2 to 4 processes.

The same layout must go on bit for bit: the loaded state is the saved one, and the next losses are those of a run that
never stopped. At another layout the gathered state is bit-equal, the order of samples the same, losses within 1e-5.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from engine_list import ENGINES
import torch
from safetensors.torch import load_file

from vitscale.checkpoint import checkpoints
from vitscale.study.case import Job, Outcome
from vitscale.study.runner import run_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
TOTAL, EVERY = 24, 6


def config(parallel: dict[str, Any], **changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "model": {
            "name": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 10,
            "embed_dim": 64, "depth": 2, "num_heads": 4, "global_pool": "avg", "drop_path": 0.1, "stem": "conv",
        },
        "data": {
            "train_limit": 150, "val_limit": 40, "flip": True, "crop_padding": 1, "mixup": 0.5, "randaugment": 1,
            "random_erasing": 0.25,
        },
        "optim": {"lr": 1e-3, "schedule": "constant", "clip_grad": 1.0, "warmup_updates": 5, "ema_decay": 0.9},
        "parallel": parallel,
        "train": {"global_batch_size": 32, "grad_accum_steps": 2, "max_updates": TOTAL},
        "eval": {"every_epochs": None},
        "checkpoint": {"every_updates": EVERY, "every_epochs": None, "keep_best": False, "keep_last": 9},
    }  # fmt: skip
    if parallel.get("zero_stage") == 3:
        tree["deepspeed"] = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **values}
    return tree


def group(folder: Path, nproc: int, **sessions: dict[str, Any]) -> Outcome:
    """Run sessions one after the other in one process group; each leaves its files in `folder`."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    job = Job("group", "resume_worker", {"sessions": sessions}, nproc, timeout_s=300, env={"PYTHONPATH": path})
    return run_job(job, folder)


def seen(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def compare(a: Path, b: Path) -> None:
    one, two = load_file(a), load_file(b)
    assert one.keys() == two.keys()
    assert any(key.startswith("ema/") for key in one)
    assert any(key.endswith("/exp_avg_sq") for key in one)
    different = [key for key in one if not torch.equal(one[key], two[key])]
    assert not different


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_run_goes_on_at_any_layout(engine: str, tmp_path: Path) -> None:
    """4 processes, killed at a random update; on with 4 (bit for bit), on with 2, and from there on with 4 again."""
    parallel = ENGINES[engine]
    tree = config(parallel)
    kill_at = random.SystemRandom().randrange(EVERY + 1, TOTAL - EVERY)
    print(f"killed at update {kill_at}")
    run, other = tmp_path / "run", tmp_path / "other"
    died = group(
        tmp_path,
        4,
        whole={"config": tree, "run": str(tmp_path / "reference")},
        killed={"config": tree, "run": str(run), "kill_at": kill_at},
    )
    assert (died.kind, died.code) == ("error", 3), died
    at = int(checkpoints(run)[-1].name.removeprefix("update-"))
    assert at == kill_at // EVERY * EVERY
    half = at + 5
    ended = group(
        tmp_path,
        2,
        fewer={"config": config(parallel, train={"max_updates": half}), "run": str(other), "copy_of": str(run)},
        on={"config": tree, "run": str(tmp_path / "third"), "copy_of": str(other)},
    )
    assert ended.kind == "ok", ended.stderr_tail
    ended = group(tmp_path, 4, same={"config": tree, "run": str(run)}, more={"config": tree, "run": str(other)})
    assert ended.kind == "ok", ended.stderr_tail
    whole, same, fewer, on, more = (seen(tmp_path, name) for name in ("whole", "same", "fewer", "on", "more"))

    assert same["losses"] == whole["losses"][at:]
    assert same["order"] == whole["order"][at:]
    compare(tmp_path / "whole-final.safetensors", tmp_path / "same-final.safetensors")

    compare(tmp_path / "same-loaded.safetensors", tmp_path / "fewer-loaded.safetensors")  # 4 -> 2
    assert fewer["order"] == whole["order"][at:half]
    assert fewer["losses"] == pytest.approx(whole["losses"][at:half], rel=1e-5)

    compare(tmp_path / "fewer-final.safetensors", tmp_path / "more-loaded.safetensors")  # 2 -> 4
    assert more["order"] == on["order"] == whole["order"][half:]
    assert more["losses"][:5] == pytest.approx(on["losses"][:5], rel=1e-5)
