"""What connects the GPUs of this host, and this host to others: NVLink and PCIe by NVML, networks by the kernel.

What cannot be found is None or absent; a bandwidth is what the system says of the link, never a measurement.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from vitscale.measure.device_state import handle_of, load_nvml

_NETWORKS = Path("/sys/class/net")
_INFINIBAND = Path("/sys/class/infiniband")


def gpu_links() -> dict[str, Any] | None:
    """How each pair of visible GPUs is connected, NVLinks and PCIe of each; None without NVML."""
    nvml = load_nvml() if torch.cuda.is_available() and torch.version.hip is None else None
    if nvml is None:
        return None
    handles = [handle_of(nvml, torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    if None in handles:
        return None
    pairs = {f"{a}-{b}": _pair(nvml, handles[a], handles[b]) for a, b in combinations(range(len(handles)), 2)}
    return {
        "pairs": pairs,
        "nvlinks": [_num_nvlinks(nvml, handle) for handle in handles],
        "pcie": [_pcie(nvml, handle) for handle in handles],
    }


def _pair(nvml: Any, one: Any, other: Any) -> str | None:
    try:
        if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return "NVLink"
        level = nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    except nvml.NVMLError:
        return None
    names = {
        nvml.NVML_TOPOLOGY_INTERNAL: "same board",
        nvml.NVML_TOPOLOGY_SINGLE: "PCIe switch",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PCIe switches",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PCIe host bridge",
        nvml.NVML_TOPOLOGY_NODE: "PCIe within a NUMA node",
        nvml.NVML_TOPOLOGY_SYSTEM: "PCIe across NUMA nodes",
    }
    return names.get(level)


def _num_nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # no such link
            break
    return active


def _pcie(nvml: Any, handle: Any) -> str | None:
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return f"gen{generation} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
    except nvml.NVMLError:
        return None


def networks(folder: Path = _NETWORKS, infiniband: Path = _INFINIBAND) -> list[dict[str, Any]]:
    """Interfaces that are up, without loopback, and the speed that the kernel says they have."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.name != "lo" and _read(path / "operstate") in ("up", "unknown"):
            speed = _read(path / "speed")
            megabits = int(speed) if speed is not None and speed.isdigit() else None
            found.append({"name": path.name, "bits_per_s": None if megabits is None else megabits * 10**6})
    for path in sorted(infiniband.glob("*/ports/*")):
        rate = _read(path / "rate")  # "100 Gb/sec (4X EDR)"
        gigabits = rate.split()[0] if rate else ""
        bits = round(float(gigabits) * 1e9) if gigabits.replace(".", "", 1).isdigit() else None
        found.append({"name": f"{path.parts[-3]}:{path.name}", "bits_per_s": bits})
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
