"""`vitscale study --prove`: the proof of equality for a study's engines, kept in DIR/proof/proof.json.

In: the plan of a study. Out: for each case, whether the engine that it runs was seen to make the same updates as one
process, on this machine, with this model, data and precision. Torch-free, as verify's parent is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscale.study.expand import Case
    from vitscale.study.study import Plan

PROOF_FILE = Path("proof") / "proof.json"
Key = tuple[str, bool]  # precision triple, compile


def prove(plan: Plan, folder: Path, device: str | None, say: Callable[[str], None]) -> None:
    """Prove what the folder's proof does not cover yet; every group of cases with one precision is proved apart."""
    from vitscale.results.files import write_json
    from vitscale.verify.proof import verify_engines

    entries = _read(folder)
    for key, cases in _groups(plan).items():
        engines = [
            name for name in sorted({_engine(case) for case in cases} - {"single"}) if (name, key) not in entries
        ]
        if not engines:
            continue
        nproc = max(case.world_size for case in cases)
        say(f"proof of equality for {', '.join(engines)} in {key[0]}, {nproc} process(es)")
        for engine in engines:
            proof = verify_engines(cases[0].config, nproc, engines=[engine], device=device)
            say(f"  {engine}: {'every figure within its bound' if proof.passed else 'NOT equal: see vitscale verify'}")
            entries[engine, key] = proof.passed
            (folder / PROOF_FILE).parent.mkdir(parents=True, exist_ok=True)
            write_json(folder / PROOF_FILE, [_row(name, of, passed) for (name, of), passed in entries.items()])


def proved(folder: Path) -> Callable[[Case], bool | None]:
    """What the folder's proof says of a case; None where it says nothing. One process is the reference itself."""
    entries = _read(folder)
    covered = {key for _, key in entries}

    def of(case: Case) -> bool | None:
        engine, key = _engine(case), _key(case)
        return key in covered or None if engine == "single" else entries.get((engine, key))

    return of


def _groups(plan: Plan) -> dict[Key, list[Case]]:
    groups: dict[Key, list[Case]] = {}
    for case in plan.cases:
        if case.skip_reason is None:
            groups.setdefault(_key(case), []).append(case)
    return groups


def _key(case: Case) -> Key:
    precision = "/".join(case.decisions.precision) if case.decisions else ""
    return precision, case.config.performance.compile


def _engine(case: Case) -> str:
    decisions = case.decisions
    if decisions is None:
        return case.config.parallel.engine
    return f"deepspeed:{decisions.zero_stage}" if decisions.engine == "deepspeed" else decisions.engine


def _row(engine: str, key: Key, passed: bool) -> dict[str, Any]:
    return {"engine": engine, "precision": key[0], "compile": key[1], "passed": passed}


def _read(folder: Path) -> dict[tuple[str, Key], bool]:
    try:
        rows = json.loads((folder / PROOF_FILE).read_text())
    except FileNotFoundError:
        return {}
    return {(row["engine"], (row["precision"], row["compile"])): row["passed"] for row in rows}
