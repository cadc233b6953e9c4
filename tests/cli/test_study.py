"""`vitscale study` before anything runs: the dry run, and one line for every mistake with nothing written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from vitscale.cli import main
from vitscale.results.record import RECORDS_FILE, Identity, Record
from vitscale.results.records import RecordStore

SMALL = """
base: {recipe: digits, train: {micro_batch_size: 16, global_batch_size: none}}
axes: {engine: [ddp, fsdp2], world_size: [1, 2]}
measure: {updates: 20}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def study(words: str) -> int:
    return main.run(["study", *shlex.split(words)])


def test_a_dry_run_prints_cases_batches_and_a_guess(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study("mine.yaml --dry-run --device cpu axes.world_size=[1,2,99]") == 0
    out = capsys.readouterr().out
    assert "engine=ddp world_size=1" in out
    assert "16 x 1 x 2 = 32" in out
    assert "3 to go" in out
    assert "skipped: needs 99 processes" in out
    assert "12 runs to go" in out
    assert "a guess" in out
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml"]


def test_a_dry_run_estimates_from_the_folders_own_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study("mine.yaml --dry-run --device cpu --out s") == 0
    with RecordStore(folder / "s" / RECORDS_FILE) as store:
        for repeat in range(3):
            identity = Identity(world_size=1)
            store.append(
                Record(study="mine", case="engine=ddp world_size=1", repeat=repeat, seconds=100, identity=identity)
            )
    from vitscale.config.study import dump_study, load_study

    (folder / "s" / "study.yaml").write_text(dump_study(load_study("mine.yaml")))
    capsys.readouterr()
    assert study("mine.yaml --dry-run --device cpu --out s axes.world_size=[1]") == 0
    out = capsys.readouterr().out
    assert "done" in out
    assert "3 runs to go" in out
    assert "a guess" not in out
    assert "about 0:0" in out


def test_a_name_of_several_words_is_a_safe_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("vitscale.study.study.check_study_folder", lambda out, *_, **__: asked.append(out))
    for name in ("..our two- H200s", ".."):
        assert main.run(["study", "mine.yaml", f"name={name}", "--dry-run", "--device", "cpu"]) == 0
    assert asked == [Path("runs/our-two--H200s"), Path("runs/study")]
    assert "folder: runs/our-two--H200s\n" in capsys.readouterr().out


def test_a_long_estimate_is_in_days(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitscale.study.study.Plan.seconds_left", lambda *_: 3 * 86_400)
    assert study("mine.yaml --dry-run --device cpu") == 0
    assert "perhaps 3.0 days" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "part"), [("{}", "measure is missing"), ("", "must hold sections and keys")])
def test_a_damaged_study_file_in_the_folder_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    (folder / "s").mkdir()
    (folder / "s" / "study.yaml").write_text(text)
    assert study("mine.yaml --device cpu --out s") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: s/study.yaml is damaged (")
    assert part in said
    assert "name another --out" in said


def test_a_dry_run_says_what_data_is_missing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study("published-strong --dry-run --device cpu") == 0
    assert "note: it could not begin: data.root=data does not exist" in capsys.readouterr().out


def test_the_packaged_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["recipes", "--json"]) == 0
    kinds = {entry["name"]: entry["kind"] for entry in json.loads(capsys.readouterr().out)}
    assert kinds["engine-shootout"] == "study"
    assert kinds["digits"] == "training"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("mine.yaml axes.micro_batch=[1]", "did you mean micro_batch_size?"),
        ("mine.yaml axes.world_size=[]", "axes.world_size=[] holds no value"),
        ("mine.yaml axes.seed=[0] repeats=251", "over 1,000; take values out"),
        ("mine.yaml base.optim.lrr=1", "base: unknown key optim.lrr (did you mean optim.lr?)"),
        ("mine.yaml axes.lr=[fast]", "optim.lr=fast must be a number"),
        ("mine.yaml axes.world_size=[99]", "no case of this study can run here"),
        ("mine.yaml measure.epochs=3", "exclude each other"),
        ("mine.yaml --device tpu", "--device tpu is not one of cpu and cuda"),
        ("mine.yaml --device cuda", "torch sees no CUDA device here"),
        ("mine.yaml base.data.source=npz base.data.root=none.npz", "data.root=none.npz does not exist"),
        ("mine.yaml --quick", "has no `quick:` part"),
        ("strong-scalin", "did you mean strong-scaling?"),
        ("missing.yaml", "config file missing.yaml does not exist"),
        ("mine.yaml --out mine.yaml", "is a file; name a folder"),
        ("mine.yaml --out /proc/study", "not writable"),
        ("mine.yaml --out .", "is not empty and holds no study"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, part: str
) -> None:
    if "cuda" in words:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    elif "--device" not in words:
        words += " --device cpu"
    if "/proc" in words:
        import os

        if os.access("/proc", os.W_OK):
            part = "cannot be"
    assert study(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml"]


def test_inside_a_launcher_it_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert study("mine.yaml --device cpu") == 2
    assert "a study starts its own processes; run it once, and not inside torchrun" in capsys.readouterr().err


def test_a_store_of_a_newer_schema_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitscale.config.study import dump_study, load_study

    (folder / "s").mkdir()
    (folder / "s" / "study.yaml").write_text(dump_study(load_study("mine.yaml")))
    (folder / "s" / RECORDS_FILE).write_text('{"kind": "case", "schema_version": 99}\n')
    assert study("mine.yaml --device cpu --out s") == 2
    assert "schema version 99" in capsys.readouterr().err


def test_a_study_that_was_stopped_while_its_engines_were_proved_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitscale.errors import EXIT_STOPPED, Stopped

    def stopped(plan: object, at: Path, *_: object) -> None:
        (at / "proof").mkdir()  # of the engines before
        raise Stopped("stopped by SIGTERM")

    monkeypatch.setattr("vitscale.cli.study_proof.prove", stopped)
    assert study("mine.yaml --device cpu --out s --prove") == EXIT_STOPPED
    assert study("mine.yaml --device cpu --out s --prove --dry-run") == 0
