"""CUDA compute capabilities: their spelling, what TensorRT-RTX targets, and that of this machine's GPU."""

from __future__ import annotations

import ctypes
import re

from hybridge.artifact.settings import bad_value

# What TensorRT-RTX 1.7 builds for.
RTX_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
# The ones with bfloat16 arithmetic, so that an engine for all of them supports every artifact.
PORTABLE_CAPABILITIES = ("8.0", "8.6", "8.9", "12.0", "12.1")
# GPUs on the memory of a Jetson or Drive board, which hardware-compatible engines exclude.
BOARD_CAPABILITIES = ("5.3", "6.2", "7.2", "8.7", "10.1", "11.0")

# The oldest that TensorRT 10 and TensorRT-RTX support.
OLDEST_CAPABILITY = 7.5
# The oldest with bfloat16 arithmetic.
OLDEST_BFLOAT16 = 8.0

_SPELLING = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)", re.IGNORECASE)
# CUdevice_attribute of the CUDA driver API.
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76


def normal_capability(text: str) -> str:
    """``text`` (8.7, 87 or sm_87) as "8.7"; SettingError when it is no compute capability."""
    match = _SPELLING.fullmatch(text.strip())
    if match is None:
        raise bad_value("compute_capabilities", "a number such as 8.6 or 12.0", text)
    return f"{int(match[1])}.{match[2]}"


def sm_name(capability: str) -> str:
    """The short name of a capability: "8.7" is "sm87"."""
    return "sm" + capability.replace(".", "")


def local_capability() -> str | None:
    """The compute capability of this machine's first CUDA GPU, None where there is no driver or no GPU."""
    for library in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return _device_capability(ctypes.CDLL(library))
        except OSError:
            continue
    return None


def _device_capability(driver: ctypes.CDLL) -> str | None:
    device, numbers = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None
    for number, attribute in zip(numbers, (_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR), strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device) != 0:
            return None
    return f"{numbers[0].value}.{numbers[1].value}"
