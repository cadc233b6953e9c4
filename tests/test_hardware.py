"""Devices as data: known ones have sources and sane figures, unknown ones have nothing."""

import pytest

from vitscale.hardware import DEVICES, find_device, peak_flops


def test_names_are_distinct_and_every_row_has_a_source():
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert device.source
        assert device.memory_bytes % 10**9 == 0
        assert 1e11 < device.bandwidth_bytes_per_s < 1e13
        assert device.bf16 is None or device.bf16 == device.fp16
        assert device.float8 is None or device.float8 == pytest.approx(2 * device.bf16, rel=0.02)


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA H200 NVL", "NVIDIA H100", "nvidia h200", "", "Radeon"])
def test_an_unlisted_name_gets_no_relatives_figures(name):
    assert find_device(name) is None
    assert peak_flops(name, "bf16") is None


def test_peaks_are_the_dense_ones():
    assert peak_flops("NVIDIA H200", "bf16") == 989.4e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "tf32") == 156e12
    assert peak_flops("NVIDIA H200", "float8") == 1978.9e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float8") is None


def test_emulation_is_said():
    t4 = find_device("Tesla T4")
    assert t4.emulates("bf16")
    assert not t4.emulates("fp16")
    assert not t4.emulates("fp32")
    assert peak_flops("Tesla T4", "bf16") is None
