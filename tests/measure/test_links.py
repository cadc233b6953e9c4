"""Networks as the kernel describes them."""

from __future__ import annotations

from pathlib import Path

from vitscale.measure.links import networks


def interface(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_only_what_is_up_counts_and_an_unknown_speed_is_none(tmp_path: Path) -> None:
    interface(tmp_path / "net", "lo", operstate="unknown", speed="1000")
    interface(tmp_path / "net", "eth0", operstate="up", speed="25000")
    interface(tmp_path / "net", "eth1", operstate="down", speed="10000")
    interface(tmp_path / "net", "veth", operstate="up", speed="-1")
    interface(tmp_path / "net", "tun", operstate="unknown")
    interface(tmp_path / "ib" / "mlx5_0" / "ports", "1", rate="400 Gb/sec (4X NDR)")
    assert networks(tmp_path / "net", tmp_path / "ib") == [
        {"name": "eth0", "bits_per_s": 25 * 10**9},
        {"name": "tun", "bits_per_s": None},
        {"name": "veth", "bits_per_s": None},
        {"name": "mlx5_0:1", "bits_per_s": 400 * 10**9},
    ]


def test_a_machine_that_says_nothing_has_no_networks(tmp_path: Path) -> None:
    assert networks(tmp_path / "nothing", tmp_path / "nothing") == []
