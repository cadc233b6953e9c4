"""study.rank: where the ranks of a host meet, and what a rank says of a neighbour that hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vitscale.errors import RunFolderError
from vitscale.launch.detect import OuterLaunch
from vitscale.study import rank as module
from vitscale.study.heartbeat import Hang


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    return tmp_path / f"vitscale-{os.getuid()}-{os.getppid()}-2"


def test_all_ranks_of_an_attempt_meet_in_one_folder_of_their_own(place: Path) -> None:
    assert module._meeting_place() == module._meeting_place() == place
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_leads_elsewhere_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    place.symlink_to(tmp_path / "theirs")
    with pytest.raises(RunFolderError, match=f"{place} belongs to somebody else; remove it"):
        module._meeting_place()


@pytest.mark.parametrize(("world_size", "elsewhere"), [(2, False), (4, True)])
def test_the_rank_is_named_by_its_number_in_the_whole_group(world_size: int, elsewhere: bool) -> None:
    outer = OuterLaunch("torchrun", world_size - 1, world_size, 1, 2, "127.0.0.1", 29400)
    watch: Any = module._HostWatch(None, outer)  # type: ignore[arg-type]
    told = watch.sentence(Hang(0, 7, "backward", 40.0, 30.0, alone=True))
    assert told.startswith(f"rank {world_size - 2} hung in phase backward of update 8")
    assert ("ranks on other hosts cannot be seen from here" in told) == elsewhere
