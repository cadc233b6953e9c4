"""Who may use a run folder, and that looking writes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitscale.errors import RunFolderError
from vitscale.results import run_folder
from vitscale.results.run_folder import CONFIG_FILE, LOCK_FILE, check_run_folder, hold_run_folder

SOURCE = Path(run_folder.__file__).parents[2]
HOLDER = (
    "import os, sys, time; from pathlib import Path; from vitscale.results.run_folder import hold_run_folder\n"
    "with hold_run_folder(Path(sys.argv[1])):\n"
    "    if os.fork() == 0: time.sleep(20); os._exit(0)\n"  # as a loader worker, which outlives a killed run a little
    "    print('held', flush=True); time.sleep(20)"
)


@contextmanager
def held_by_another(out: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_missing_folder_is_free_and_stays_missing(tmp_path: Path) -> None:
    check_run_folder(tmp_path / "run", fresh=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_an_empty_folder_is_free(tmp_path: Path, fresh: bool) -> None:
    check_run_folder(tmp_path, fresh=fresh)
    assert not list(tmp_path.iterdir())


def test_a_run_can_go_on_but_not_begin_anew(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).touch()
    check_run_folder(tmp_path, fresh=False)
    with pytest.raises(RunFolderError, match="--fresh needs an empty folder"):
        check_run_folder(tmp_path, fresh=True)


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match="not a run folder"):
        check_run_folder(tmp_path, fresh=False)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(RunFolderError, match="is a file"):
        check_run_folder(tmp_path / "run", fresh=False)


def test_a_folder_in_use_is_refused_by_name(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as process:
        with pytest.raises(RunFolderError, match=f"in use by process {process.pid}"):
            check_run_folder(tmp_path, fresh=False)
        with pytest.raises(RunFolderError, match="in use"), hold_run_folder(tmp_path):
            pass


def test_a_killed_run_frees_its_folder_although_its_workers_live(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as process:
        process.kill()
        process.wait()
        check_run_folder(tmp_path, fresh=False)
        with hold_run_folder(tmp_path):
            assert str(os.getpid()) in (tmp_path / LOCK_FILE).read_text()


def test_a_crash_that_left_only_the_lock_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    check_run_folder(tmp_path, fresh=True)
    with hold_run_folder(tmp_path):
        pass


def test_a_run_that_wrote_nothing_leaves_nothing_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with hold_run_folder(tmp_path / "mine" / "runs" / "a"):
        assert (tmp_path / "mine" / "runs" / "a" / LOCK_FILE).exists()
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_run_that_wrote_something_keeps_its_folder(tmp_path: Path) -> None:
    with hold_run_folder(tmp_path / "run"):
        (tmp_path / "run" / CONFIG_FILE).touch()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [CONFIG_FILE, LOCK_FILE]


def test_a_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="file is a file"):
        check_run_folder(tmp_path / "file" / "a" / "run", fresh=False)
    with pytest.raises(RunFolderError, match="cannot be written"), hold_run_folder(tmp_path / "file" / "run"):
        pass
