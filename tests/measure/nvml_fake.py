"""Stands for pynvml: two GPUs joined by NVLink, of which the second does not tell its power."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml raises it."""


class FakeNvml:
    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVML_FEATURE_ENABLED, NVML_NVLINK_MAX_LINKS = 2, 0, 1, 18
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50

    def __init__(self, *, linked: bool = True) -> None:
        self.energy_mj, self.reasons, self.linked, self.samples = 1_000_000, 0, linked, 0

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if not uuid.startswith("GPU-uuid"):
            raise NVMLError(uuid)
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        self.samples += 1
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetTemperature(self, handle: str, which: int) -> int:
        return 55

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if handle.endswith("1"):
            raise NVMLError("not supported")
        return 650_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self.energy_mj += 2_500
        return self.energy_mj

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, index: int) -> int:
        return 0 if self.linked else 6

    def nvmlDeviceGetTopologyCommonAncestor(self, one: str, other: str) -> int:
        return 50

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        if link >= 4 or not self.linked:
            raise NVMLError("no such link")
        return 1

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: str) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        return 16


def properties_of(device: Any) -> SimpleNamespace:
    return SimpleNamespace(uuid=f"uuid-{device.index}")
