"""What is recorded of the machine: complete, JSON, and without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from vitscale.launch import probe
from vitscale.measure import environment


def test_describe_is_json_and_names_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    text = json.dumps(environment.describe())
    facts = json.loads(text)
    assert facts["packages"]["torch"] == torch.__version__.partition("+")[0]
    assert facts["cpu"]["cores"] == os.cpu_count()
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert "secret" not in text
    assert facts["torch_threads"]["intra_op"] == torch.get_num_threads()
    assert facts["links"] is None or set(facts["links"]) == {"pairs", "nvlinks", "pcie"}
    assert all(set(network) == {"name", "bits_per_s"} for network in facts["networks"])


def test_the_child_answers_what_the_parent_reads() -> None:
    source = Path(environment.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", probe.PROBE_MODULE],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    facts = probe._parse(done.stdout)
    assert facts is not None
    assert facts.cuda_devices == torch.cuda.device_count()


@pytest.mark.parametrize(("major", "expected"), [(7, "emulated"), (8, "native"), (9, "native")])
def test_bf16_is_native_from_capability_8(monkeypatch: pytest.MonkeyPatch, major: int, expected: str) -> None:
    properties = SimpleNamespace(name="X", total_memory=8, major=major, minor=0, multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    (device,) = environment.cuda_devices()
    assert device["bf16"] == expected
    assert environment.device_facts()["bf16"] == (expected == "native")


@pytest.mark.parametrize(("capability", "expected"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_float8_begins_with_ada(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: bool) -> None:
    major, minor = capability
    properties = SimpleNamespace(name="X", total_memory=8, major=major, minor=minor, multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert environment.device_facts()["float8"] is expected


def test_a_source_tree_has_a_commit_and_another_folder_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "vitscale" / "measure"
    folder.mkdir(parents=True)
    (tmp_path / "vitscale" / "errors.py").write_text("x = 1\n")
    assert environment._git(folder) is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "empty"], check=True)
    assert environment._git(folder) is None  # a repository, but not of this source
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "source"], check=True)
    clean = environment._git(folder)
    assert clean is not None
    assert clean["dirty"] is False
    (tmp_path / "vitscale" / "errors.py").write_text("x = 2\n")
    assert environment._git(folder) == {**clean, "dirty": True}
