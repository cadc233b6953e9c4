"""`vitscale study --prove`: the proof of equality for a study's engines, kept in DIR/proof/proof.json.

In: the plan of a study. Out: for each case, whether the engine that it runs was seen to make the same updates as one
process, on this machine, with the case's model, precision and switches, and at least as many processes. Torch-free, as
verify's parent is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitscale.config.performance import FastPaths

if TYPE_CHECKING:
    from vitscale.config.run import RunConfig
    from vitscale.study.expand import Case
    from vitscale.study.study import Plan

PROOF_FILE = Path("proof") / "proof.json"
PLAIN = FastPaths(compile=False, cuda_graph=False, attention="default")
_FREE = (
    "drop_path",
    "dropout",
    "pretrained",
    "freeze",
)  # of the model: the proof has its own, or does not depend on them


class Key(NamedTuple):
    """What a proof is a proof of. setting: precision, model, switches, as JSON, whatever the engine."""

    engine: str
    setting: str


Kept = dict[tuple[Key, int], bool]
"""(what, number of processes) -> whether it passed."""


def prove(plan: Plan, folder: Path, device: str | None, say: Callable[[str], None]) -> None:
    """Prove every engine in every setting of the cases, for the largest world size it has, unless that is kept."""
    from vitscale.results.files import write_json
    from vitscale.verify.proof import verify_engines

    kept = _read(folder)
    for key, cases in _groups(plan).items():
        nproc = max(case.world_size for case in cases)
        if any(known == key and size >= nproc for known, size in kept):
            continue
        say(f"proof of equality for {key.engine}, {_title(key)}, {nproc} process{'es' if nproc > 1 else ''}")
        proof = verify_engines(_as_run(cases[0]), nproc, engines=[key.engine], device=device)
        say(f"  {key.engine}: {'every figure within its bound' if proof.passed else 'NOT equal: see vitscale verify'}")
        kept[key, nproc] = proof.passed
        (folder / PROOF_FILE).parent.mkdir(parents=True, exist_ok=True)
        write_json(folder / PROOF_FILE, [_row(of, size, passed) for (of, size), passed in kept.items()])


def proved(folder: Path) -> Callable[[Case], bool | None]:
    """What the folder's proof says of a case; None where it says nothing. One process without switches is the
    reference itself: equal where any engine was compared with it."""
    kept = _read(folder)
    compared = {_of_all_engines(key) for key, _ in kept}

    def of(case: Case) -> bool | None:
        key = _key(case)
        if _is_reference(case):
            return _of_all_engines(key) in compared or None
        found = [passed for (known, size), passed in kept.items() if known == key and size >= case.world_size]
        return all(found) if found else None

    return of


def _groups(plan: Plan) -> dict[Key, list[Case]]:
    groups: dict[Key, list[Case]] = {}
    for case in plan.cases:
        if case.skip_reason is None and not _is_reference(case):
            groups.setdefault(_key(case), []).append(case)
    return groups


def _is_reference(case: Case) -> bool:
    """Whether a case is the plain single process that all others are compared with."""
    return _engine(case) == "single" and _fast(case) == PLAIN


def _key(case: Case) -> Key:
    engine, config = _engine(case), case.config
    model = config.model.model_dump(mode="json", exclude=set(_FREE))
    setting = {
        "precision": "/".join(case.decisions.precision) if case.decisions else "",
        **_fast(case)._asdict(),
        "model": model,
        "deepspeed": config.deepspeed if engine.startswith("deepspeed") else {},
    }
    return Key(engine, json.dumps(setting, sort_keys=True))


def _fast(case: Case) -> FastPaths:
    return case.decisions.fast if case.decisions else PLAIN


def _as_run(case: Case) -> RunConfig:
    """The case's config with what `auto` became for it: that is to be proved."""
    performance = case.config.performance.model_copy(update=_fast(case)._asdict())
    return case.config.model_copy(update={"performance": performance})


def _of_all_engines(key: Key) -> str:
    """The setting without what only DeepSpeed has."""
    return json.dumps({**json.loads(key.setting), "deepspeed": {}}, sort_keys=True)


def _title(key: Key) -> str:
    """The setting in a few words."""
    setting = json.loads(key.setting)
    words = [setting["model"]["name"], setting["precision"], *(w for w in ("compile", "cuda_graph") if setting[w])]
    if setting["attention"] != "default":
        words.append(f"attention={setting['attention']}")
    return ", ".join(words)


def _engine(case: Case) -> str:
    decisions = case.decisions
    if decisions is None:
        return case.config.parallel.engine
    return f"deepspeed:{decisions.zero_stage}" if decisions.engine == "deepspeed" else decisions.engine


def _row(key: Key, nproc: int, passed: bool) -> dict[str, Any]:
    return {"engine": key.engine, "nproc": nproc, "passed": passed, "setting": json.loads(key.setting)}


def _read(folder: Path) -> Kept:
    """The proofs that are kept; rows of an earlier version, which said less of what they prove, count for nothing."""
    try:
        rows = json.loads((folder / PROOF_FILE).read_text())
    except FileNotFoundError:
        return {}
    known = [row for row in rows if "setting" in row]
    return {
        (Key(row["engine"], json.dumps(row["setting"], sort_keys=True)), row["nproc"]): row["passed"] for row in known
    }
