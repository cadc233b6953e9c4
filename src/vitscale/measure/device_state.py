"""Clocks, temperature, power and energy of this rank's GPU over a window, as NVML gives them. All None without NVML.

NVML comes with the extra `[nvml]` (nvidia-ml-py). Values are sampled by a thread twice a second, and the energy
counter is read at the window's two ends. NVML talks to the driver, not to the CUDA context: no kernel waits for it.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable
from typing import Any

import torch

PERIOD_S = 0.5
# Bits of NVML's clocksEventReasons that mean: slowed for power or heat. Idle, the user's own limits and sync boost
# are none of them. Software power cap, hardware slow-down, software thermal, hardware thermal, hardware power brake.
_SLOWED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80


class DeviceWatch:
    """Samples between `start` and `stop`, which may follow each other more than once: energies add up."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = load_nvml() if device.type == "cuda" else None
        self._handle: Any = None if self._nvml is None else handle_of(self._nvml, device)
        self._samples: dict[str, list[float]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._energy_before: float | None = None
        self._energy: float | None = None

    def start(self) -> None:
        """Begin to sample."""
        if self._handle is None:
            return
        self._stop.clear()
        self._energy_before = self._energy_mj()
        self._thread = threading.Thread(target=self._run, name="vitscale-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a second call does nothing."""
        if self._thread is None:
            return
        after = self._energy_mj()
        if after is not None and self._energy_before is not None:
            self._energy = (self._energy or 0.0) + (after - self._energy_before) / 1e3
        self._stop.set()
        self._thread.join()
        self._thread = None

    def state(self) -> dict[str, Any] | None:
        """The fields of results.record.DeviceState; None where NVML told nothing."""
        if not self._samples and self._energy is None:
            return None
        state: dict[str, Any] = {
            name: statistics.median(values) for name, values in self._samples.items() if name != "slowed"
        }
        if "slowed" in self._samples:
            state["throttled"] = any(self._samples["slowed"])
        return {**state, "energy_j": self._energy}

    def _run(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(PERIOD_S):
                return

    def _sample(self) -> None:
        nvml, handle = self._nvml, self._handle
        self._keep("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        self._keep("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        self._keep("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        self._keep("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
        self._keep("slowed", lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWED))

    def _keep(self, name: str, ask: Callable[[], float]) -> None:
        try:
            self._samples.setdefault(name, []).append(ask())
        except self._nvml.NVMLError:  # this device does not tell
            if not self._samples[name]:
                del self._samples[name]

    def _energy_mj(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except self._nvml.NVMLError:
            return None


def state_now(device: torch.device) -> Callable[[], tuple[float, float]] | None:
    """Asks NVML for (SM clock in MHz, temperature in degrees Celsius) when called, NaN for what it does not tell; None
    without NVML. For runs that are not measured: no thread, a question now and then."""
    nvml: Any = load_nvml() if device.type == "cuda" else None
    handle: Any = None if nvml is None else handle_of(nvml, device)
    if handle is None:
        return None

    def ask(question: Callable[[], float]) -> float:
        try:
            return float(question())
        except nvml.NVMLError:
            return math.nan

    return lambda: (
        ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    )


def load_nvml() -> Any:
    """The NVML bindings, initialised; None where they or the driver are missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def handle_of(nvml: Any, device: torch.device) -> Any:
    """NVML's handle of a CUDA device, which it numbers in its own way; None where there is none (MIG)."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (nvml.NVMLError, AttributeError):
        return None
