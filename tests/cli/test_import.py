"""`vitscale import`: a table into a folder that report and compare read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vitscale.results.records import read_study

TABLE = "gpus,batch_per_gpu,seconds_per_epoch,test_accuracy,weather\n1,64,100,0.9,fine\n2,64,52,0.9,fine\n"


def table(folder: Path, text: str = TABLE) -> str:
    path = folder / "published.csv"
    path.write_text(text)
    return str(path)


def test_a_table_becomes_a_study(vitscale, tmp_path: Path):
    out = tmp_path / "deep" / "out"
    done = vitscale(
        "import", table(tmp_path), "--out", str(out), "--set", "precision=fp32", "--set", "data_source=CIFAR-10"
    )
    assert done.returncode == 0, done.stderr
    assert "2 rows of published.csv are 2 cases" in done.stdout
    assert "nothing here knows them: column weather" in done.stdout
    records, broken = read_study(out)
    assert broken == 0
    assert [record.identity.precision for record in records] == ["fp32", "fp32"]
    assert records[1].identity.train_images == 50_000
    assert vitscale("compare", str(out), str(out)).returncode == 0


def test_a_folder_in_use_is_left_alone(vitscale, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    done = vitscale("import", table(tmp_path), "--out", str(out))
    assert done.returncode == 2
    assert "is not empty; name another --out" in done.stderr
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_wrong_table_leaves_no_folder(vitscale, tmp_path: Path):
    out = tmp_path / "out"
    done = vitscale("import", table(tmp_path, "gpus,seconds_per_epoch\n1,x\n"), "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not out.exists()
    facts = vitscale("import", table(tmp_path), "--out", str(out), "--set", "precision")
    assert "write COLUMN=VALUE" in facts.stderr
    assert not out.exists()


def test_a_case_name_writes_nowhere_else(vitscale, tmp_path: Path):
    out = tmp_path / "out"
    text = "gpus,seconds_per_epoch,cluster\n1,2,../../<script>\n2,2,a\n"
    assert vitscale("import", table(tmp_path, text), "--out", str(out)).returncode == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out", "published.csv", "records.jsonl"]
    assert read_study(out)[0][0].case == "cluster=../../<script> world_size=1"


def test_no_torch_is_loaded(tmp_path: Path):
    out = tmp_path / "out"
    code = (
        "import sys; from vitscale.cli.main import run; "
        f"assert run(['import', {table(tmp_path)!r}, '--out', {str(out)!r}]) == 0; "
        f"assert run(['compare', {str(out)!r}, {str(out)!r}]) == 0; "
        "sys.exit(repr(heavy) if (heavy := {'torch', 'torchvision', 'timm', 'deepspeed', 'sklearn', 'pyarrow'} "
        "& set(sys.modules)) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
