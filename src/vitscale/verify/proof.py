"""The proof of equality: run the jobs, compare every engine with one process, and say what is out of bounds.

In: a RunConfig and a number of processes. Out: a Proof, a table of figures beside the noise floor. Torch-free parent:
the ranks are started by the study's runner, and what they gathered is read from safetensors files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from vitscale.config.decide import decide
from vitscale.config.run import RunConfig
from vitscale.errors import EXIT_BAD_INPUT, RunFailed, VitscaleError
from vitscale.study.case import Job, Outcome
from vitscale.study.machine import this_machine
from vitscale.study.runner import OnProgress, run_jobs
from vitscale.verify.variants import CLIP_LIMIT, ENGINES, FLOOR_FACTOR, ProofJob, Variant, proof_jobs

SMALL = 1e-6  # of the global gradient norm: tensors below it are judged against the global norm
SMALLEST_FLOOR = 1e-8  # two runs may agree to the last bit; ten times nothing is no bound
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Figure:
    """One relative difference beside its bound and its floor; `worst` names the tensor or the update."""

    job: str
    variant: str
    quantity: str
    value: float
    floor: float
    bound: float | None
    worst: str

    @property
    def failed(self) -> bool:
        """Out of bounds; without a fixed bound (below fp32), over ten times the floor. NaN fails."""
        limit = self.bound if self.bound is not None else FLOOR_FACTOR * max(self.floor, SMALLEST_FLOOR)
        return not self.value <= limit

    @property
    def marked(self) -> bool:
        """Within its bound, but over ten times what one process differs from itself."""
        return not self.failed and self.value > FLOOR_FACTOR * max(self.floor, SMALLEST_FLOOR)


@dataclass(frozen=True)
class Proof:
    """All figures, and the jobs that gave none (name, reason, whether that is a failure)."""

    figures: tuple[Figure, ...]
    missing: tuple[tuple[str, str, bool], ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Everything ran that could run, and nothing is out of bounds."""
        return bool(self.figures) and not any(f.failed for f in self.figures) and not any(m[2] for m in self.missing)


def verify_engines(
    config: RunConfig,
    nproc: int = 2,
    *,
    engines: Sequence[str] = ENGINES,
    only: Sequence[str] = (),
    device: str | None = None,
    folder: Path | None = None,
    timeout_s: float = 900.0,
    on_progress: OnProgress | None = None,
) -> Proof:
    """Compare `engines` on `nproc` processes with one process; the config's own engine, batch and length are ignored.

    only: names of variants to run; all if empty.
    Raises RunFailed if the reference itself does not run, ConfigError for an engine that does not exist.
    """
    jobs = proof_jobs(config, nproc, engines, only, this_machine(device).device_type)
    with tempfile.TemporaryDirectory(prefix="vitscale-verify-") as scratch:
        root = folder or Path(scratch)
        runner_jobs = [
            Job(j.name, "vitscale.verify.worker", j.payload(config, device), j.world_size, timeout_s, {}, j.problem)
            for j in jobs
        ]
        outcomes = run_jobs(runner_jobs, root, on_progress)
        reference = outcomes[0]
        if reference.code == EXIT_BAD_INPUT:
            raise VitscaleError(reference.sentence)
        if reference.kind != "ok":
            raise RunFailed(f"the reference run on one process failed: {reference.sentence}\n{reference.stderr_tail}")
        return _judge(config, jobs, outcomes, root)


def _judge(config: RunConfig, jobs: list[ProofJob], outcomes: list[Outcome], root: Path) -> Proof:
    figures: list[Figure] = []
    missing: list[tuple[str, str, bool]] = []
    exact = decide(config.model_copy(update={"deepspeed": {}}), world_size=1).precision.compute == "fp32"
    read = _reader(root, jobs, outcomes)
    for job, outcome in zip(jobs[1:], outcomes[1:], strict=True):
        if outcome.kind != "ok":
            missing.append((job.name, outcome.sentence or outcome.kind, outcome.kind != "skipped"))
            continue
        for variant in job.variants:
            figures += _compare(job, variant, jobs[0], read, fixed_bounds=exact or variant.double)
    return Proof(tuple(figures), tuple(missing), sum(o.seconds for o in outcomes))


Read = Callable[[ProofJob, Variant], tuple[dict[str, Any], Tensors]]


def _reader(root: Path, jobs: list[ProofJob], outcomes: list[Outcome]) -> Read:
    results = {job.name: outcome.result for job, outcome in zip(jobs, outcomes, strict=True)}

    def read(job: ProofJob, variant: Variant) -> tuple[dict[str, Any], Tensors]:
        result = results[job.name]
        assert result is not None
        return result["variants"][variant.name], load_file(root / job.name / f"{variant.name}.safetensors")

    return read


def _compare(job: ProofJob, variant: Variant, single: ProofJob, read: Read, *, fixed_bounds: bool) -> list[Figure]:
    reference, floor = read(single, variant.plain(1)), read(single, variant.plain(2))
    if variant.clip and not (reference[0]["grad_norms"][0] or 0) > CLIP_LIMIT:
        raise RunFailed(f"{variant.name}: clipping is not active in the reference, so it proves nothing")
    here = read(job, variant)
    figures = []
    for quantity, bound in zip(("weights", "losses", "gradients"), variant.bounds, strict=True):
        if bound is None:
            continue
        value, worst = difference(quantity, here, reference, variant.optimizer)
        floor_value, _ = difference(quantity, floor, reference, variant.optimizer)
        limit = bound if fixed_bounds else None
        figures.append(Figure(job.name, variant.name, quantity, value, floor_value, limit, worst))
    return figures


def difference(
    quantity: str,
    a: tuple[dict[str, Any], Tensors],
    b: tuple[dict[str, Any], Tensors],
    optimizer: str = "sgd",
) -> tuple[float, str]:
    """The largest relative difference of a from b, and where: ||a - b|| / ||b|| per tensor, |a - b| / |b| per loss."""
    if quantity == "losses":
        x, y = np.array(a[0]["losses"]), np.array(b[0]["losses"])
        relative = np.abs(x - y) / np.abs(y)
        at = int(np.argmax(np.where(np.isnan(relative), np.inf, relative)))
        return float(relative[at]), f"update {at}"
    total = float(np.sqrt(sum(_norm(t) ** 2 for key, t in b[1].items() if key.startswith("gradient/"))))
    prefix = {"weights": "weight/", "gradients": "gradient/"}[quantity]
    worst, where = 0.0, ""
    for key, expected in b[1].items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        scale = _norm(expected)
        if _norm(b[1].get(f"gradient/{name}", expected)) < SMALL * total:
            scale = total
        value = _norm(_judged(name, a[1][key] - expected, optimizer)) / max(scale, 1e-300)
        if not value <= worst:
            worst, where = value, name
    return worst, where


def _judged(name: str, tensor: NDArray[Any], optimizer: str) -> NDArray[Any]:
    """Without the key third of qkv.bias under AdamW: its gradient is exactly 0, and AdamW makes steps of its noise."""
    if optimizer == "adamw" and name.endswith("qkv.bias"):
        third = len(tensor) // 3
        return np.concatenate([tensor[:third], tensor[2 * third :]])
    return tensor


def _norm(tensor: NDArray[Any]) -> float:
    return float(np.linalg.norm(tensor.astype(np.float64)))
