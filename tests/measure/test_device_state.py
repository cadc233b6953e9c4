"""What NVML tells of a GPU while it works, and that nothing is invented where it does not."""

from __future__ import annotations

import math
import time

import pytest
import torch
from nvml_fake import FakeNvml, properties_of

from vitscale.measure import device_state, links
from vitscale.measure.device_state import DeviceWatch, state_now
from vitscale.results.record import DeviceState


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    for module in (device_state, links):
        monkeypatch.setattr(module, "load_nvml", lambda: fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties_of)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.01)
    return fake


def watched(index: int) -> DeviceState:
    watch = DeviceWatch(torch.device("cuda", index))
    watch.start()
    time.sleep(0.1)
    watch.stop()
    state = watch.state()
    assert state is not None
    return DeviceState.model_validate(state)


def test_medians_of_samples_and_the_energy_between_both_ends(nvml: FakeNvml) -> None:
    assert watched(0) == DeviceState(
        sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=55, power_w=650, energy_j=2.5, throttled=False
    )
    assert nvml.samples >= 4


def test_what_lies_between_two_windows_takes_no_energy_and_gives_no_sample(nvml: FakeNvml) -> None:
    watch = DeviceWatch(torch.device("cuda", 0))
    for _ in range(2):
        watch.start()
        time.sleep(0.05)
        watch.stop()
        watch.stop()
        nvml.energy_mj += 10**6  # an evaluation
        before = nvml.samples
        time.sleep(0.05)
        assert nvml.samples == before
    state = watch.state()
    assert state is not None
    assert state["energy_j"] == 2 * 2.5


def test_what_a_device_does_not_tell_is_none(nvml: FakeNvml) -> None:
    state = watched(1)
    assert state.power_w is None
    assert state.temperature_c == 55


@pytest.mark.parametrize(
    ("reasons", "slowed"), [(0x01, False), (0x02, False), (0x04, True), (0x40, True), (0x80, True)]
)
def test_slowed_for_power_or_heat(nvml: FakeNvml, reasons: int, slowed: bool) -> None:
    nvml.reasons = reasons
    assert watched(0).throttled is slowed


def test_sampling_ends_with_the_window(nvml: FakeNvml) -> None:
    watched(0)
    before = nvml.samples
    time.sleep(0.05)
    assert nvml.samples == before


def test_without_nvml_or_a_gpu_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_state, "load_nvml", lambda: None)
    for device in ("cpu", "cuda:0"):
        watch = DeviceWatch(torch.device(device))
        watch.start()
        watch.stop()
        assert watch.state() is None


def test_a_device_that_nvml_does_not_know_has_no_handle(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeNvml, "nvmlDeviceGetHandleByUUID", lambda self, uuid: (_ for _ in ()).throw(nvml.NVMLError())
    )
    watch = DeviceWatch(torch.device("cuda", 0))
    watch.start()
    assert watch.state() is None
    assert links.gpu_links() is None


def test_links_between_gpus(nvml: FakeNvml) -> None:
    assert links.gpu_links() == {"pairs": {"0-1": "NVLink"}, "nvlinks": [4, 4], "pcie": ["gen5 x16", "gen5 x16"]}
    nvml.linked = False
    assert links.gpu_links() == {
        "pairs": {"0-1": "PCIe across NUMA nodes"},
        "nvlinks": [0, 0],
        "pcie": ["gen5 x16", "gen5 x16"],
    }


def test_the_state_of_now(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = state_now(torch.device("cuda", 0))
    assert ask is not None
    assert ask() == (1980, 55)

    def silent(handle: str, which: int) -> int:
        raise nvml.NVMLError("not supported")

    monkeypatch.setattr(nvml, "nvmlDeviceGetTemperature", silent)
    clock, temperature = ask()
    assert clock == 1980
    assert math.isnan(temperature)


def test_without_nvml_there_is_no_state_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_now(torch.device("cpu")) is None
    monkeypatch.setattr(device_state, "load_nvml", lambda: None)
    assert state_now(torch.device("cuda", 0)) is None
