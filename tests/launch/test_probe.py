"""The parent's knowledge of devices: no child where none can be, one child where there may be, then the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitscale.errors import DeviceError
from vitscale.launch import probe

ANSWER = {
    "cuda_devices": 2,
    "cuda_names": ["A", "A"],
    "cuda_total_bytes": [8, 8],
    "bf16": True,
    "mps": False,
    "rocm": False,
    "torch_cuda": "13.0",
    "float8": True,
}
CHILD = 'import pathlib; open({calls!r}, "a").write("x"); print("a library says hello"); print({answer!r})'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an accelerator and a probe module that counts its calls; returns the counting file."""
    calls = tmp_path / "calls"
    (tmp_path / "fake_probe.py").write_text(CHILD.format(calls=str(calls), answer=json.dumps(ANSWER)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "PROBE_MODULE", "fake_probe")
    monkeypatch.setattr(probe, "_ACCELERATOR_PATHS", ("/dev/null",))
    return calls


def test_no_child_where_no_accelerator_can_be(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_ACCELERATOR_PATHS", ("/no/such/path",))
    monkeypatch.setattr(probe.sys, "platform", "linux")
    assert probe.device_facts() == probe.NO_DEVICES
    assert not machine.exists()


def test_asked_once_then_cached_until_the_visible_devices_change(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.cached_device_facts() is None
    facts = probe.device_facts()
    assert (facts.cuda_devices, facts.cuda_names, facts.bf16, facts.float8) == (2, ("A", "A"), True, True)
    assert probe.device_facts() == facts == probe.cached_device_facts()
    assert machine.read_text() == "x"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert probe.cached_device_facts() is None
    probe.device_facts()
    assert machine.read_text() == "xx"


def test_a_damaged_cache_is_asked_again(machine: Path, tmp_path: Path) -> None:
    probe.device_facts()
    (cached,) = (tmp_path / "cache" / "vitscale").iterdir()
    cached.write_text('{"cuda_devices": 2}')
    assert probe.device_facts().cuda_devices == 2
    assert machine.read_text() == "xx"


def test_an_answer_from_before_float8_was_asked_for_is_asked_again(machine: Path, tmp_path: Path) -> None:
    probe.device_facts()
    (cached,) = (tmp_path / "cache" / "vitscale").iterdir()
    cached.write_text(json.dumps({name: value for name, value in ANSWER.items() if name != "float8"}))
    assert probe.device_facts().float8
    assert machine.read_text() == "xx"


def test_a_home_that_cannot_be_written_costs_only_time(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    assert probe.device_facts().cuda_devices == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [("raise RuntimeError('driver too old')", "driver too old"), ("print('?')", "not readable"), ("", "not readable")],
)
def test_a_probe_that_fails_is_one_sentence(machine: Path, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "fake_probe.py").write_text(text)
    with pytest.raises(DeviceError, match=words):
        probe.device_facts()


def test_a_probe_that_hangs_is_one_sentence(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_probe.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.5)
    with pytest.raises(DeviceError, match="did not answer within"):
        probe.device_facts()
