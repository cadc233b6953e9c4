"""README and docs: links resolve, commands parse, sentences and figures are what the code and the records give."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import typer

import vitscale
from vitscale.cli import main
from vitscale.config.decide import decide, optimizer_pair
from vitscale.config.load import load_config, recipes
from vitscale.config.study import load_study, studies
from vitscale.results.rates import images_per_s
from vitscale.results.records import read_records

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("benchmarks/*/*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
RECORDS = ROOT / "benchmarks" / "2026-11-train-h200"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    """Prose alone: fenced blocks, indented blocks and code spans taken out."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def code_of(text: str) -> Iterator[str]:
    """Lines of fenced and indented blocks (a line that ends in a backslash goes on), and code spans."""
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.M | re.S):
        yield from block.replace("\\\n", " ").splitlines()
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).replace("\\\n", " ")
    yield from (line for line in rest.splitlines() if line.startswith("    "))
    prose = "\n".join(line for line in rest.splitlines() if not line.startswith("    "))
    yield from re.findall(r"`([^`]+)`", prose)


def commands_of(text: str) -> Iterator[str]:
    """What stands behind `vitscale ` in code, up to a remark, a pipe or a redirection."""
    for line in code_of(text):
        if found := re.search(r"(?:^|[\s$`])vitscale ([a-z-].*)", line):
            yield re.split(r"`|\s{2,}|\s#|\s[|>&]|\)", found[1])[0].strip()


def slug(heading: str) -> str:
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower())
    return re.sub(r"\s", "-", words.strip())


# --- links --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(name))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in map(slug, headings), f"{name}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = text_of("docs/index.md")
    for page in ROOT.glob("docs/*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, flags=re.M), page.name


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_commands_exist_and_parse(name: str) -> None:
    group = typer.main.get_command(main.app)
    packaged = {recipe.name for recipe in recipes()}
    planned = {study.name for study in studies()}
    for line in commands_of(text_of(name)):
        words = shlex.split(line.replace("--nproc N", "--nproc 2"))
        if words[0].startswith("--"):
            assert words[0] in ("--help", "--version"), line
            continue
        assert words[0] in group.commands, f"{name}: vitscale {line}"  # type: ignore[attr-defined]
        if len(words) == 1 or "--help" in words:
            continue
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        try:
            given = command.make_context(words[0], words[1:]).params
        except Exception as error:
            raise AssertionError(f"{name}: vitscale {line}: {error}") from error
        shown_to_fail = f"$ vitscale {line}" in text_of(name)
        keys = list(given.get("overrides") or [])
        source = given.get("config")
        if words[0] == "verify" and "=" in (source or ""):
            source, keys = "verify", [source, *keys]
        if source in packaged and not shown_to_fail:
            load_config(source, keys)
        if words[0] == "study" and words[1] in planned and not shown_to_fail:
            load_study(words[1], keys, quick=given["quick"])


def test_the_pages_hold_many_commands() -> None:
    """The search above finds what a person would type."""
    found = [line for name in NAMES for line in commands_of(text_of(name))]
    assert len(found) > 60
    assert "verify --engine fsdp2 --variant sgd-accum1" in found


SHOWN = re.findall(r"^    \$ vitscale (.*)\n    (error: .*)$", text_of("docs/troubleshooting.md"), flags=re.M)


@pytest.mark.parametrize(("line", "sentence"), SHOWN, ids=[line for line, _ in SHOWN])
def test_troubleshooting_shows_real_sentences(line, sentence, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(shlex.split(line)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == sentence
    assert list(tmp_path.iterdir()) == []


def test_troubleshooting_shows_some() -> None:
    assert len(SHOWN) >= 10


# --- Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "docs/api.md"])
def test_python_examples_run(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"^```python\n(.*?)^```", text_of(name), flags=re.M | re.S)[0]
    exec(compile(example.replace("train.epochs=2", "train.epochs=1"), name, "exec"), {})
    assert list(tmp_path.glob("runs/*/result.json"))


def test_the_api_page_has_every_name_with_its_parameters() -> None:
    page = text_of("docs/api.md")
    for name in vitscale.__all__:
        value = getattr(vitscale, name)
        assert f"**`{name}" in page, name
        if inspect.isfunction(value):
            shown = re.search(rf"\*\*`{name}\((.*?)\) ->", page)
            assert shown, name
            names = [part.partition("=")[0].strip() for part in shown[1].split(",")]
            assert [n for n in names if n != "*"] == list(inspect.signature(value).parameters), name


def test_the_architecture_page_names_every_module() -> None:
    page = text_of("docs/architecture.md")
    for path in (ROOT / "src" / "vitscale").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert path.name in page, path


# --- the legal tables ---------------------------------------------------------------------------------------------

ENGINES = ("single", "ddp", "fsdp2", "deepspeed")


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_the_precision_table_is_what_decide_allows() -> None:
    shown = {}
    for row in re.findall(r"^\| `\w+/\w+/\w+`.*$", text_of("docs/training.md"), flags=re.M):
        triples, _, engines = cells(row)
        for triple in re.findall(r"`(\w+/\w+/\w+)`", triples):
            shown[triple] = {name for name in ENGINES if name in engines or engines.startswith("all")}
    allowed: dict[str, set[str]] = {}
    kinds = ("fp32", "bf16", "fp16")
    for triple in product((*kinds, "tf32", "float8"), kinds, kinds):
        for engine in ENGINES:
            pairs = zip(("compute", "params", "reduce"), triple, strict=True)
            keys = [f"parallel.engine={engine}", *(f"precision.{name}={kind}" for name, kind in pairs)]
            with suppress(vitscale.VitscaleError):
                decide(load_config("digits", keys), world_size=1)
                allowed.setdefault("/".join(triple), set()).add(engine)
    assert shown == allowed


def test_the_engine_table_is_the_legal_table() -> None:
    found = re.findall(r"^\| `(?:single|ddp|fsdp2|deepspeed)`.*$", text_of("docs/training.md"), flags=re.M)
    rows = [cells(row) for row in found]
    assert len(rows) == 7
    for name, _, _, optimizers, resume in rows:
        engine = next(e for e in ENGINES if f"`{e}`" in name)
        stage = int(name[-1]) if engine == "deepspeed" else 0
        pairs = {o: optimizer_pair(o, engine, stage) for o in ("adamw", "sgd", "lamb", "muon")}
        legal = [o for o, pair in pairs.items() if pair.legal]
        resharded = [o for o in legal if pairs[o].resharding]
        assert optimizers.split(", ") == legal, name
        assert resume == ("yes" if resharded == legal else f"{', '.join(resharded)} only"), name


# --- figures ------------------------------------------------------------------------------------------------------


def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures_table", RECORDS / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_figures_of_the_shootout() -> None:
    records, broken = read_records(ROOT / "benchmarks" / "2026-11-shootout-h200")
    assert broken == 0
    readme, notes = text_of("README.md"), text_of("benchmarks/2026-11-shootout-h200/NOTES.md")
    assert len(records) == 21
    assert f"{len(records)} of 36 cases" in readme
    for record in records:
        rate = f"{images_per_s(record):,.0f}"
        assert f"| {rate}" in notes, record.case
        if record.axes["micro_batch_size"] == 256 and record.axes["compile"]:
            assert f" {rate}" in readme.replace("\n", " "), record.case


def test_the_readme_has_the_records_figures() -> None:
    made = table()
    shown = text_of("README.md").partition(made.BEGIN)[2].partition(made.END)[0]
    assert shown.strip() == made.figures().strip(), f"run: python {RECORDS.relative_to(ROOT)}/table.py"


def test_the_records_agree_with_themselves() -> None:
    for record in table().rows("records.jsonl"):
        if "images_per_s" in record:
            assert record["exit_code"] == 0
            assert record["images_per_s"] == pytest.approx(64 / record["step_time_s"])
            assert len(record["interval_step_time_s"]) * 10 == record["updates"] == 200
