"""Markdown and terminal say the same as the page, and keep its manners."""

import report_making as make
from rich.console import Console

from vitscale.report import files, markdown, terminal


def shown(summary, width=80):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as captured:
        terminal.show(summary, console)
    return captured.get()


def test_markdown_has_verdict_table_failures_and_warnings():
    text = markdown.render(make.scaling_study())
    assert text.startswith("## Engines on H200\n\n**ddp is the fastest on 8 GPUs")
    assert "* **Scaling.** ddp: with the global batch fixed" in text
    assert "| ddp, 8 GPUs | ok | 3 | 23,903 (23,711 to 24,094) |" in text
    assert "### Failures\n\n* single, 1 GPU: CUDA out of memory" in text
    assert "* **warning** (super-linear): ddp on 2 devices" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 27


def test_markdown_escapes_what_it_would_read_as_marks():
    text = markdown.render(make.hostile_study())
    for bad in ("<script", "<img", "@someone", "[x](", "`c`", "\x1b"):
        assert bad not in text
    table = [line.replace("\\|", "") for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


def test_the_terminal_is_whole_on_80_columns():
    text = shown(make.scaling_study())
    assert max(map(len, text.splitlines())) <= 80
    assert "23,903" in text
    assert "DeepSpeed ZeRO 3, 8 GPUs" in text
    assert "single, 1 GPU: out of memory" in " ".join(text.split())
    assert "1 warning and 1 note" in text
    assert "…" not in text


def test_the_terminal_reads_no_markup_from_names():
    summary = make.summary(make.case("a [red]b[/red]"), make.case("[/]", None), study="[bold]x")
    assert "[bold]x" in shown(summary)
    assert "\x1b" not in shown(make.hostile_study())


def test_three_files_inside_the_folder_and_none_outside(tmp_path):
    folder = tmp_path / "a" / "study"
    folder.mkdir(parents=True)
    path = files.write_report(make.hostile_study(), folder)
    assert path == folder / "report.html"
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["cases.csv", "report.html", "report.md"]
