"""Accelerators as data: peak FLOP/s by precision, memory, bandwidth, each with its source. Torch-free.

Peaks are the makers' figures for dense matrix products (half of those "with sparsity"), fp32 accumulation where the
maker gives both. A device is found by the exact name that torch reports; an unknown name, or a variant that is not
listed (A10G, H200 NVL), gives None and never the nearest relative's figures.
"""

from __future__ import annotations

from dataclasses import dataclass

TERA = 1e12
GB = 10**9
FLOAT8_CAPABILITY = (8, 9)  # NVIDIA's compute capability of Ada; Hopper is 9.0
FLOAT8_MULTIPLE = 16  # divides the widths of a float8 product on NVIDIA's tensor cores


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. None: the device does not do it natively (bf16, tf32, float8) or has no such link."""

    name: str
    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float | None
    float8: float | None
    memory_bytes: int
    bandwidth_bytes_per_s: float
    nvlink_bytes_per_s: float | None
    source: str

    def peak_flops(self, compute: str) -> float | None:
        """Dense peak in FLOP/s for a precision.compute; None where it is emulated or not known."""
        peaks = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16, "float8": self.float8}
        return peaks[compute]

    def emulates(self, compute: str) -> bool:
        """True if torch runs this precision without hardware for it (bf16 on a T4)."""
        return compute in ("bf16", "fp16") and self.peak_flops(compute) is None


def find_device(name: str) -> Device | None:
    """The device of this exact name (as torch.cuda.get_device_name gives it), or None."""
    return _BY_NAME.get(name)


def peak_flops(name: str, compute: str) -> float | None:
    """Dense peak of a device by name, or None where either is unknown."""
    device = find_device(name)
    return device.peak_flops(compute) if device else None


def _device(
    name: str,
    tera: tuple[float, float | None, float | None, float | None, float | None],
    memory_gb: int,
    bandwidth_gb: float,
    nvlink_gb: float | None,
    source: str,
) -> Device:
    fp32, tf32, bf16, fp16, float8 = (None if peak is None else peak * TERA for peak in tera)
    assert fp32 is not None
    link = None if nvlink_gb is None else nvlink_gb * GB
    return Device(name, fp32, tf32, bf16, fp16, float8, memory_gb * GB, bandwidth_gb * GB, link, source)


_HOPPER = "NVIDIA H100 Tensor Core GPU datasheet"
_AMPERE = "NVIDIA A100 Tensor Core GPU datasheet"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix"
_VOLTA = "NVIDIA V100 Tensor Core GPU datasheet"

# name | fp32, tf32, bf16, fp16, float8 in TFLOP/s | memory GB | memory GB/s | NVLink GB/s, both directions | source
DEVICES: tuple[Device, ...] = (
    _device("NVIDIA H200", (67, 494.7, 989.4, 989.4, 1978.9), 141, 4800, 900, "NVIDIA H200 Tensor Core GPU datasheet"),
    _device("NVIDIA H100 80GB HBM3", (67, 494.7, 989.4, 989.4, 1978.9), 80, 3350, 900, _HOPPER),
    _device("NVIDIA H100 PCIe", (51, 378, 756, 756, 1513), 80, 2000, 600, _HOPPER),
    _device("NVIDIA A100-SXM4-80GB", (19.5, 156, 312, 312, None), 80, 2039, 600, _AMPERE),
    _device("NVIDIA A100-SXM4-40GB", (19.5, 156, 312, 312, None), 40, 1555, 600, _AMPERE),
    _device("NVIDIA A100 80GB PCIe", (19.5, 156, 312, 312, None), 80, 1935, 600, _AMPERE),
    _device("NVIDIA A100-PCIE-40GB", (19.5, 156, 312, 312, None), 40, 1555, 600, _AMPERE),
    _device("NVIDIA A40", (37.4, 74.8, 149.7, 149.7, None), 48, 696, 112.5, "NVIDIA A40 datasheet"),
    _device("NVIDIA A10", (31.2, 62.5, 125, 125, None), 24, 600, None, "NVIDIA A10 Tensor Core GPU datasheet"),
    _device("NVIDIA L40S", (91.6, 183, 362, 362, 733), 48, 864, None, "NVIDIA L40S datasheet"),
    _device("NVIDIA L40", (90.5, 90.5, 181, 181, 362), 48, 864, None, "NVIDIA L40 datasheet"),
    _device("NVIDIA L4", (30.3, 60, 121, 121, 242.5), 24, 300, None, "NVIDIA L4 Tensor Core GPU datasheet"),
    _device("NVIDIA GeForce RTX 3090", (35.6, 35.6, 71, 71, None), 24, 936, 112.5, _GA102),
    _device("NVIDIA GeForce RTX 3070", (20.3, 20.3, 40.6, 40.6, None), 8, 448, None, _GA102),
    _device(
        "NVIDIA GeForce RTX 4090",
        (82.6, 82.6, 165.2, 165.2, 330.3),
        24,
        1008,
        None,
        "NVIDIA Ada GPU architecture whitepaper",
    ),
    _device("Tesla T4", (8.1, None, None, 65, None), 16, 320, None, "NVIDIA T4 datasheet"),
    _device("Tesla V100-SXM2-16GB", (15.7, None, None, 125, None), 16, 900, 300, _VOLTA),
    _device("Tesla V100-SXM2-32GB", (15.7, None, None, 125, None), 32, 900, 300, _VOLTA),
    _device("Tesla P4", (5.5, None, None, None, None), 8, 192, None, "NVIDIA Tesla P4 datasheet"),
)

_BY_NAME = {device.name: device for device in DEVICES}
