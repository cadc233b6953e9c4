"""`vitscale report`: three formats, files beside the records, one sentence for what is wrong, and no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitscale.cli import main

MAKING = Path(__file__).parents[1] / "report"
sys.path.insert(0, str(MAKING))  # pytest's importlib mode adds no folder by itself

import record_making as make  # noqa: E402

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture
def study(tmp_path) -> Path:
    return make.write_study(
        tmp_path / "study", make.study(engines=2, micros=(16,), sizes=(1, 2), repeats=3, updates=20)
    )


def test_html_lies_beside_the_records_and_the_verdict_is_printed(study, capsys):
    assert main.run(["report", str(study)]) == 0
    shown = capsys.readouterr().out
    assert f"report: {study / 'report.html'}" in shown.replace("\n", "")
    assert "ddp" in shown
    assert sorted(path.name for path in study.iterdir()) == ["cases.csv", "records.jsonl", "report.html", "report.md"]
    assert "fastest" in (study / "report.md").read_text()


def test_a_records_file_is_a_study_too(study, capsys):
    assert main.run(["report", str(study / "records.jsonl"), "--format", "html"]) == 0
    assert (study / "report.html").is_file()


def test_markdown_and_terminal_print_and_write_nothing(study, capsys):
    assert main.run(["report", str(study), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("## simulated\n")
    assert main.run(["report", str(study), "--format", "terminal"]) == 0
    assert "images/s" in capsys.readouterr().out
    assert [path.name for path in study.iterdir()] == ["records.jsonl"]


def test_a_study_that_was_cut_off_is_reported_with_what_is_there(study):
    with (study / "records.jsonl").open("a") as file:
        file.write('{"kind": "case", "schema_')
    assert main.run(["report", str(study)]) == 0
    assert "1 unreadable line skipped" in (study / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "rows", "sentence"),
    [
        ([], None, "does not exist"),
        ([], [], "holds no records"),
        ([], [{"kind": "case", "schema_version": 99}], "schema"),
        (["--format", "pdf"], None, "--format pdf is not one of html, md, terminal"),
    ],
)
def test_one_sentence_for_what_is_wrong(tmp_path, capsys, arguments, rows, sentence):
    if rows is not None:
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main.run(["report", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert sentence in error
    assert not (tmp_path / "report.html").exists()


def test_figures_without_the_extra_say_what_to_install(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vitscale.report.images.find_spec", lambda name: None)
    assert main.run(["report", str(study), "--figures", str(tmp_path / "figures")]) == 3
    assert "pip install 'vitscale[figures]'" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()


@pytest.mark.skipif(CHROME is None, reason="no Chrome or Chromium")
def test_figures_as_files(study, tmp_path, capsys):
    pytest.importorskip("kaleido")
    assert main.run(["report", str(study), "--format", "md", "--figures", str(tmp_path / "figures")]) == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"scaling-speedup.svg", "scaling-speedup.png", "attribution-share.svg"} <= names
    assert (tmp_path / "figures" / "scaling-speedup.svg").read_text().startswith("<svg")
    assert "files in" in capsys.readouterr().err  # not into the Markdown


RUN = """
import sys, time
from pathlib import Path
from vitscale.cli import main
code = main.run(["report", sys.argv[1]])
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "timm", "deepspeed", "torchvision"})
# VmHWM, and not getrusage, whose figure a process inherits from the one that started it.
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(code, time.process_time(), int(peak.split()[1]) // 1024, loaded)
"""


@pytest.mark.parametrize("many_cases", [False, True])
def test_500_records_of_200_steps(tmp_path, many_cases):
    """Under 10 s, 500 MB and 7 MB, without torch; as 125 cases with 4 repeats, and as 500 cases."""
    grid = {"micros": tuple(range(8, 88, 8)), "sizes": tuple(range(1, 11)), "repeats": 1} if many_cases else {}
    records = make.study(**grid)
    assert len(records) == 500
    folder = make.write_study(tmp_path / "study", records)
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True, timeout=120)
    code, seconds, megabytes, loaded = done.stdout.splitlines()[-1].split(maxsplit=3)
    assert (code, loaded) == ("0", "[]"), done.stderr
    assert float(seconds) < 10  # of the processor: neighbours on the machine are not the report's business
    assert int(megabytes) < 500
    assert (folder / "report.html").stat().st_size < 7_000_000
