"""The NVIDIA GPUs of this machine, asked of the driver itself: no CUDA toolkit and no Python package is needed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute, CUDA driver API


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device, in the driver's order (CUDA_VISIBLE_DEVICES applied)."""

    name: str
    target: str
    """Its compute capability, "sm_89"."""


def devices() -> tuple[Gpu, ...]:
    """Every visible GPU; none where there is no driver or it fails to start."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_describe(driver, ordinal) for ordinal in range(count.value))


def _describe(driver: ctypes.CDLL, ordinal: int) -> Gpu:
    device, number = ctypes.c_int(0), ctypes.c_int(0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return Gpu(name.value.decode(errors="replace"), f"sm_{capability[0]}{capability[1]}")
