"""Which variants a job of the proof has, and what they are compared with."""

from __future__ import annotations

import pytest

from vitscale.config.decide import decide
from vitscale.config.load import build_config, load_config
from vitscale.verify.variants import proof_jobs


@pytest.mark.parametrize(
    ("nproc", "expected"),
    [(1, set()), (2, {(21, 11), (24, 8)}), (4, {(16, 8, 4, 4)})],
)
def test_unequal_shares_are_proved_against_the_same_reference(nproc: int, expected: set[tuple[int, ...]]) -> None:
    config = load_config("digits", [])
    reference, job = proof_jobs(config, nproc, ["ddp"], device_type="cpu")
    assert len({v.name for v in job.variants}) == len(job.variants)
    unequal = [v for v in job.variants if v.balance]
    trees = [build_config(job.tree(config, v)) for v in unequal]
    found = [decide(tree, world_size=nproc) for tree in trees]
    assert {d.shares for d in found if d.batch.grad_accum_steps == 1} <= expected
    assert len(unequal) == (4 if nproc > 1 else 0)
    assert all(sum(d.shares) * d.batch.grad_accum_steps == job.batch for d in found)
    for variant in unequal:
        assert variant.plain(1) in reference.variants
        assert build_config(reference.tree(config, variant.plain(1))).parallel.balance == "none"
