"""Checkpoints of a run folder: written atomically, manifest last; found, verified, pruned.

    RUN/checkpoints/update-00000500/  manifest.json  state.json  weights.safetensors  [ema.safetensors]  engine/...
    RUN/checkpoints/best.json         {"name": ..., "top1": ...}

In: an engine that saves its own state under engine/. weights.safetensors and ema.safetensors hold full fp32 tensors
by timm's names: eval, predict and export read these alone and unpickle nothing. engine/ is unpickled by torch DCP and
DeepSpeed, so a checkpoint is opened only if every file's SHA-256 is the one in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vitscale.distributed import World
from vitscale.engine.base import Engine
from vitscale.errors import CheckpointError, RunFailed
from vitscale.results.files import write_json

MANIFEST = "manifest.json"
_PARTIAL = ".writing-"
_DAMAGED = "damaged-"
_VERSION = 1


@dataclass(frozen=True)
class TrainState:
    """Where a run stands. Order and randomness are functions of seed, window and sample: nothing else is needed.

    update: applied updates. window: data windows consumed (updates and skipped steps). images_seen: real images.
    identity: what must not change when the run is resumed.
    best_top1, best_update: the best evaluation so far and the update it was of.
    evaluated_window: the last window after which it was evaluated.
    """

    update: int
    window: int
    images_seen: int
    identity: dict[str, Any]
    best_top1: float | None = None
    evaluated_window: int = 0
    best_update: int | None = None


def checkpoint_name(update: int) -> str:
    """The folder name of a checkpoint."""
    return f"update-{update:08d}"


def write_checkpoint(run: Path, engine: Engine, state: TrainState, world: World, *, ema: bool) -> Path | None:
    """Write a checkpoint; it exists under its name only when it is whole. Collective.

    None, with nothing written, if a weight is not finite: the last good checkpoint must stay the last.
    """
    final = run / "checkpoints" / checkpoint_name(state.update)
    partial = final.parent / f"{_PARTIAL}{final.name}"
    if world.on_main(lambda: _prepare(final, partial)):
        return final
    try:
        return _write(partial, final, engine, state, world, ema=ema)
    except BaseException:  # a full disk: what is half-written must not stand in the way of freeing some space
        if world.main:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _write(partial: Path, final: Path, engine: Engine, state: TrainState, world: World, *, ema: bool) -> Path | None:
    weights = engine.gathered_parameters()
    if world.any(not all(bool(w.isfinite().all()) for w in weights.values())):
        world.on_main(lambda: shutil.rmtree(partial))
        return None
    engine.save(partial / "engine")
    average = engine.gathered_parameters(ema=True) if ema else {}
    if world.main:
        _save_tensors(weights, partial / "weights.safetensors")
        if ema:
            _save_tensors(average, partial / "ema.safetensors")
        write_json(partial / "state.json", asdict(state))
    world.barrier()
    if world.main:
        _seal(partial, final)
    world.barrier()
    return final


def _prepare(final: Path, partial: Path) -> bool:
    """Whether the checkpoint is there already; else an empty folder to write into."""
    if (final / MANIFEST).is_file():
        return True
    shutil.rmtree(final, ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "engine").mkdir(parents=True)
    return False


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def _seal(partial: Path, final: Path) -> None:
    """Manifest last, everything on disk and read back from there, then the name."""
    files = sorted(p for p in partial.rglob("*") if p.is_file())
    digests = {p.relative_to(partial).as_posix(): {"sha256": _sha256(p), "bytes": p.stat().st_size} for p in files}
    for path in files:
        _sync(path)
    write_json(partial / MANIFEST, {"version": _VERSION, "files": digests})
    for path in files:
        if _sha256(path) != digests[path.relative_to(partial).as_posix()]["sha256"]:
            raise RunFailed(
                f"{path} does not read as it was written, so its disk or file system is at fault; the checkpoint "
                "before it stands"
            )
    partial.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Onto the disk, and out of memory where the system lets us, so that reading it again reads the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- keeping ------------------------------------------------------------------------------------------------------


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted(p.parent for p in (run / "checkpoints").glob(f"update-*/{MANIFEST}"))


def mark_best(run: Path, update: int, top1: float) -> None:
    """Remember which checkpoint is the best one."""
    (run / "checkpoints").mkdir(exist_ok=True)
    write_json(run / "checkpoints" / "best.json", {"name": checkpoint_name(update), "top1": top1})


def prune(run: Path, keep_last: int) -> None:
    """Delete all but the last `keep_last` checkpoints and the best one, and what a killed run left half-written."""
    keep = {p.name for p in checkpoints(run)[-keep_last:]} | {_best_name(run)}
    for path in checkpoints(run):
        if path.name not in keep:
            (path / MANIFEST).unlink()  # from here on it is no checkpoint, also if we are killed on the way
            shutil.rmtree(path)


def sweep(run: Path) -> None:
    """Remove what killed runs left: half-written, half-deleted and half-converted checkpoints."""
    folder = run / "checkpoints"
    leftovers = [*folder.glob(f"{_PARTIAL}*"), *folder.glob(".universal-*")]
    leftovers += [p for p in folder.glob("update-*") if not (p / MANIFEST).is_file()]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def settle_best(run: Path, state: TrainState) -> TrainState:
    """Make best.json and a resumed state agree; returns the state.

    A kill between a best checkpoint and its mark leaves the mark behind; an evaluation after the checkpoint of its
    update (the end of a run, one that was owed) leaves the state behind; and the best one may have been deleted.
    """
    marked = _best(run)
    own = state.best_top1 if state.best_update == state.update else None
    if own is not None and (marked is None or marked[1] < own):
        mark_best(run, state.update, own)
        return state
    if marked is None:
        return replace(state, best_top1=None, best_update=None)
    return replace(state, best_top1=marked[1], best_update=int(marked[0].rpartition("-")[2]))


def _best(run: Path) -> tuple[str, float] | None:
    """The name and top-1 of the marked checkpoint; None if none was marked, or it was deleted since."""
    path = run / "checkpoints" / "best.json"
    try:
        best = json.loads(path.read_text())
        name, top1 = str(best["name"]), float(best["top1"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is damaged; delete it") from None
    return (name, top1) if (path.parent / name / MANIFEST).is_file() else None


def _best_name(run: Path) -> str | None:
    marked = _best(run)
    return marked[0] if marked else None


# --- reading ------------------------------------------------------------------------------------------------------


def find_checkpoint(run: Path, which: str = "last") -> Path:
    """The checkpoint called `best`, `last` or by its name, verified. `best` is `last` if no marked one is there.

    Raises CheckpointError if there is none or a file is missing, truncated or altered.
    """
    present = checkpoints(run)
    if not present:
        raise CheckpointError(f"{run} holds no checkpoint; train it first")
    name = {"best": _best_name(run), "last": present[-1].name}.get(which, which) or present[-1].name
    path = run / "checkpoints" / name
    if path not in present:
        names = ", ".join(p.name for p in present)
        raise CheckpointError(f"{run} has no checkpoint {name}; it has best, last, {names}")
    verify_manifest(path)
    return path


def verify_manifest(checkpoint: Path) -> None:
    """Raise CheckpointError unless every file is there, whole and unaltered, and none was added."""
    try:
        listed = json.loads((checkpoint / MANIFEST).read_text())["files"]
        expected = {name: (entry["sha256"], entry["bytes"]) for name, entry in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{checkpoint / MANIFEST} is damaged; delete {checkpoint} and resume") from None
    advice = f"; delete {checkpoint} to resume from an older one"
    present = {p.relative_to(checkpoint).as_posix() for p in checkpoint.rglob("*") if p.is_file()} - {MANIFEST}
    for name in sorted(expected.keys() | present):
        path = checkpoint / name
        if name not in present:
            raise CheckpointError(f"{path} is missing{advice}")
        if name not in expected:
            raise CheckpointError(f"{path} is not in the manifest{advice}")
        digest, size = expected[name]
        if (found := path.stat().st_size) != size:
            what = "truncated" if found < size else "too long"
            raise CheckpointError(f"{path} is {what}: {found} bytes instead of {size}{advice}")
        if _sha256(path) != digest:
            raise CheckpointError(f"{path} was altered: its SHA-256 is not the manifest's{advice}")


def newest_whole(run: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not; those are set aside.

    A damaged one keeps its files, under another name, so that the run can write it anew. Raises CheckpointError if
    there are checkpoints and none is whole: to begin anew would throw away what may still be saved.
    """
    present, told = checkpoints(run), list[str]()
    for path in reversed(present):
        try:
            verify_manifest(path)
        except CheckpointError as error:
            if path == present[0]:
                raise
            aside = path.with_name(f"{_DAMAGED}{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            problem = str(error).partition("; delete")[0].replace(f"{path}{os.sep}", "")
            told.append(f"checkpoint {path.name} is damaged ({problem}) and now called {aside.name}")
        else:
            return path, tuple(f"{sentence}; going on from {path.name}" for sentence in told)
    return None, ()


def read_state(checkpoint: Path) -> TrainState:
    """Where the run stood."""
    return TrainState(**json.loads((checkpoint / "state.json").read_text()))


def read_weights(checkpoint: Path, *, ema: bool = False) -> dict[str, torch.Tensor]:
    """Full fp32 weights (or their EMA) by timm's names, on the CPU."""
    path = checkpoint / ("ema.safetensors" if ema else "weights.safetensors")
    if not path.is_file():
        raise CheckpointError(f"{checkpoint} has no EMA weights; the run had optim.ema_decay off")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
