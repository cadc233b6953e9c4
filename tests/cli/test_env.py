"""What `vitscale env` says of a GPU, without one."""

from vitscale.cli.env import _device


def test_a_known_device_has_peaks_and_an_unknown_none():
    known = _device({"name": "Tesla T4", "total_bytes": 15 * 2**30, "bf16": "emulated"})
    assert "bf16 emulated" in known
    assert "fp16 65" in known
    assert "bf16 65" not in known
    assert "peak FLOP/s unknown" in _device({"name": "NVIDIA A10G", "total_bytes": 2**34, "bf16": "native"})
