"""checkpoint: atomic at every line, verified by its manifest, pruned without losing the last or the best."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from vitscale import checkpoint as module
from vitscale.checkpoint import (
    MANIFEST,
    TrainState,
    checkpoint_name,
    checkpoints,
    find_checkpoint,
    mark_best,
    newest_whole,
    prune,
    read_state,
    read_weights,
    settle_best,
    sweep,
    verify_manifest,
    write_checkpoint,
)
from vitscale.distributed import World
from vitscale.errors import CheckpointError, RunFailed
from vitscale.results import files as files_module

WORLD = World(0, 1, 0, torch.device("cpu"))
TRACED = (module.__file__, files_module.__file__)
CHANGES = ("os.remove", "os.rmdir", "os.rename", "os.mkdir")


class FakeEngine:
    """Weights that say which update they are of."""

    def __init__(self, value: float) -> None:
        self.value = value

    def save(self, folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "shard").write_bytes(bytes([int(self.value) % 256]) * 100)

    def gathered_parameters(self, *, ema: bool = False) -> dict[str, torch.Tensor]:
        return {"head.weight": torch.full((2, 3), self.value + (0.5 if ema else 0.0))}


def write(run: Path, update: int, *, value: float | None = None, ema: bool = False, **state: Any) -> Path | None:
    engine: Any = FakeEngine(update if value is None else value)
    return write_checkpoint(run, engine, TrainState(update, update, 8 * update, {}, **state), WORLD, ema=ema)


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoints(run)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for update in (1, 2, 3):
        write(run, update)
    mark_best(run, 1, 0.9)
    return run


# --- written whole ------------------------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, 5, ema=True, best_top1=0.5)
    assert path == tmp_path / "checkpoints" / "update-00000005"
    assert find_checkpoint(tmp_path) == path
    assert read_state(path) == TrainState(5, 5, 40, {}, best_top1=0.5)
    assert torch.equal(read_weights(path)["head.weight"], torch.full((2, 3), 5.0))
    assert torch.equal(read_weights(path, ema=True)["head.weight"], torch.full((2, 3), 5.5))


def test_a_checkpoint_without_ema_says_so(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no EMA weights; the run had optim.ema_decay off"):
        read_weights(find_checkpoint(run), ema=True)


def test_the_same_update_is_not_written_twice(run: Path) -> None:
    before = (run / "checkpoints" / checkpoint_name(3) / MANIFEST).stat().st_mtime_ns
    assert write(run, 3, value=99) == find_checkpoint(run)
    assert (find_checkpoint(run) / MANIFEST).stat().st_mtime_ns == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_refuse_a_checkpoint(value: float, run: Path) -> None:
    assert write(run, 4, value=value) is None
    assert names(run) == [checkpoint_name(update) for update in (1, 2, 3)]
    assert find_checkpoint(run).name == checkpoint_name(3)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["best.json", *names(run)]


def kill_at_line(work: Callable[[], Any], line: int) -> bool:
    """Run `work` in a fork that SIGKILLs itself before the n-th line of checkpoint.py and files.py, where lines are
    also the removals, renames and new folders below them (shutil.rmtree's); False if it ended before that."""
    child = os.fork()
    if child == 0:
        seen = 0

        def step() -> None:
            nonlocal seen
            if seen == line:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in TRACED:
                return None
            if event == "line":
                step()
            return trace

        try:
            sys.addaudithook(lambda event, _: step() if event in CHANGES else None)
            sys.settrace(trace)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_kill_at_any_line_leaves_a_state_that_the_next_run_reads(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trainer does at a new best: write, prune, mark. Every line of it is a place to die."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a killed process loses nothing that it wrote; only slow here
    work_run = tmp_path / "killed"

    def work() -> None:
        write(work_run, 4, ema=True, best_top1=0.95, best_update=4)
        prune(work_run, keep_last=2)
        mark_best(work_run, 4, 0.95)

    line, ended_at = 0, set()
    while True:
        shutil.rmtree(work_run, ignore_errors=True)
        shutil.copytree(run, work_run)
        if not kill_at_line(work, line):
            break
        sweep(work_run)
        last = find_checkpoint(work_run)
        ended_at.add(last.name)
        assert read_weights(last)["head.weight"][0, 0].item() == read_state(last).update
        for path in checkpoints(work_run):
            verify_manifest(path)
        whole = {*names(work_run), "best.json", ".best.json.tmp"}
        assert {path.name for path in (work_run / "checkpoints").iterdir()} <= whole
        state = settle_best(work_run, read_state(last))
        best = find_checkpoint(work_run, "best").name
        assert (
            (best, state.best_top1) == (last.name, 0.95) if read_state(last).update == 4 else (checkpoint_name(1), 0.9)
        )
        work()  # the resumed run gets there as well
        assert find_checkpoint(work_run, "best").name == find_checkpoint(work_run).name == checkpoint_name(4)
        assert set(names(work_run)) <= {checkpoint_name(update) for update in (1, 3, 4)}
        line += 1
    assert line > 120
    assert ended_at == {checkpoint_name(3), checkpoint_name(4)}


# --- verified -----------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("file", ["weights.safetensors", "state.json", "engine/deep/shard"])
@pytest.mark.parametrize(
    ("damage", "word"),
    [(Path.unlink, "is missing"), (truncate, "is truncated"), (lengthen, "is too long"), (alter, "was altered")],
)
def test_damage_is_found_and_named(damage: Callable[[Path], None], word: str, file: str, run: Path) -> None:
    path = find_checkpoint(run) / file
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(run)
    assert str(caught.value).startswith(f"{path} {word}")
    assert f"delete {run / 'checkpoints' / checkpoint_name(3)} to resume from an older one" in str(caught.value)
    assert find_checkpoint(run, checkpoint_name(2)).name == checkpoint_name(2)


def test_an_added_file_is_found(run: Path) -> None:
    path = find_checkpoint(run) / "engine" / "evil.pt"
    path.write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"evil.pt is not in the manifest"):
        find_checkpoint(run)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"files": {"state.json": 3}}', '{"files": []}'])
def test_a_damaged_manifest_is_said(text: str, run: Path) -> None:
    (find_checkpoint(run) / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged; delete .*update-00000003"):
        find_checkpoint(run)


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint; train it first"):
        find_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"has no checkpoint update-00000009; it has best, last, update-00000001"):
        find_checkpoint(run, checkpoint_name(9))


def test_a_damaged_newest_one_is_set_aside_and_the_one_before_is_taken(run: Path) -> None:
    truncate(run / "checkpoints" / checkpoint_name(3) / "weights.safetensors")
    path, told = newest_whole(run)
    assert path == run / "checkpoints" / checkpoint_name(2)
    (sentence,) = told
    assert sentence.startswith("checkpoint update-00000003 is damaged (weights.safetensors is truncated: ")
    assert sentence.endswith("now called damaged-update-00000003; going on from update-00000002")
    assert names(run) == [checkpoint_name(1), checkpoint_name(2)]
    assert (run / "checkpoints" / "damaged-update-00000003" / "weights.safetensors").is_file()
    write(run, 3, value=7)  # the run comes there again
    assert newest_whole(run) == (run / "checkpoints" / checkpoint_name(3), ())


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(run: Path) -> None:
    for path in checkpoints(run):
        (path / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"update-00000001/state.json is missing"):
        newest_whole(run)
    assert checkpoints(run)


def test_a_run_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) == (None, ())


def test_a_disk_that_returns_other_bytes_is_found_at_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files change between being written and being read back, as on a failing disk."""
    sync = module._sync

    def failing(path: Path) -> None:
        sync(path)
        if path.name == "shard":
            alter(path)

    monkeypatch.setattr(module, "_sync", failing)
    with pytest.raises(RunFailed, match="shard does not read as it was written"):
        write(run, 4)
    assert names(run) == [checkpoint_name(update) for update in (1, 2, 3)]
    assert not list((run / "checkpoints").glob(".writing-*"))


# --- kept ---------------------------------------------------------------------------------------------------------


def test_prune_keeps_the_last_and_the_best(run: Path) -> None:
    write(run, 4)
    prune(run, keep_last=2)
    assert names(run) == [checkpoint_name(update) for update in (1, 3, 4)]
    mark_best(run, 4, 0.95)
    prune(run, keep_last=1)
    assert names(run) == [checkpoint_name(4)]


def test_best_falls_back_to_last_only_if_none_was_marked(run: Path) -> None:
    assert find_checkpoint(run, "best").name == checkpoint_name(1)
    (run / "checkpoints" / "best.json").unlink()
    assert find_checkpoint(run, "best").name == checkpoint_name(3)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_best_is_said(text: str, run: Path) -> None:
    (run / "checkpoints" / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"best.json is damaged; delete it"):
        find_checkpoint(run, "best")


def test_sweep_removes_what_killed_runs_left_and_nothing_else(run: Path) -> None:
    folder = run / "checkpoints"
    for name in (".writing-update-00000004", ".universal-abc", "update-00000005", "mine"):
        (folder / name).mkdir()
        (folder / name / "file").touch()
    sweep(run)
    assert sorted(p.name for p in folder.iterdir()) == ["best.json", "mine", *names(run)]
    sweep(run.parent / "no-run")  # nothing there, nothing wrong


def test_a_best_that_was_written_but_not_yet_marked_is_marked_at_resume(run: Path) -> None:
    write(run, 4, best_top1=0.95, best_update=4)
    state = settle_best(run, read_state(find_checkpoint(run)))
    assert (state.best_update, state.best_top1) == (4, 0.95)
    assert json.loads((run / "checkpoints" / "best.json").read_text())["name"] == checkpoint_name(4)


def test_a_best_that_was_marked_after_its_checkpoint_counts_at_resume(run: Path) -> None:
    """An evaluation after the checkpoint of the same update: state.json does not know its result."""
    mark_best(run, 3, 0.97)
    state = settle_best(run, read_state(find_checkpoint(run)))
    assert (state.best_update, state.best_top1) == (3, 0.97)


def test_a_best_whose_checkpoint_is_gone_no_longer_counts(run: Path) -> None:
    write(run, 4, best_top1=0.9, best_update=1)
    shutil.rmtree(run / "checkpoints" / checkpoint_name(1))
    state = settle_best(run, read_state(find_checkpoint(run)))
    assert (state.best_update, state.best_top1) == (None, None)
    assert find_checkpoint(run, "best").name == checkpoint_name(4)
    write(run, 5, best_top1=0.8, best_update=5)  # below what the deleted one had, and now the best
    assert settle_best(run, read_state(find_checkpoint(run))).best_top1 == 0.8
    assert find_checkpoint(run, "best").name == checkpoint_name(5)
