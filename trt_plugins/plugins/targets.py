"""GPUs that an engine is built for, as the kernels' planners see them, without having one.

Shared memory is that of the CUDA C++ programming guide (technical specifications per compute capability). GPUs of one
capability differ in multiprocessors and L2: several are tried, from the smallest to the largest that was made.
"""

from __future__ import annotations

from hybridge.trt_plugins.kernels.architectures import architecture
from hybridge.trt_plugins.kernels.call import DeviceTraits

_KIB, _MIB = 1024, 1024 * 1024
# Most shared memory of one block, in KiB; capabilities that are not listed have at least that of the smallest.
_SHARED_KIB = {
    (8, 0): 163,
    (8, 6): 99,
    (8, 7): 163,
    (8, 9): 99,
    (9, 0): 227,
    (10, 0): 227,
    (11, 0): 227,
    (12, 0): 99,
    (12, 1): 99,
}
_LEAST_SHARED_KIB = 99
_MULTIPROCESSORS = (8, 24, 64, 132, 192)


def capability_from_text(text: str) -> tuple[int, int]:
    """The compute capability "8.7" as (8, 7)."""
    major, minor = text.split(".")
    return int(major), int(minor)


def traits_from_capability(capability: tuple[int, int]) -> tuple[DeviceTraits, ...]:
    """GPUs of one compute capability; UnsupportedError where the kernels do not run on it (below 8.0)."""
    architecture(capability)
    shared = _SHARED_KIB.get(capability, _LEAST_SHARED_KIB) * _KIB
    return tuple(
        DeviceTraits(capability, multiprocessors, shared, l2_bytes=max(2, multiprocessors // 4) * _MIB)
        for multiprocessors in _MULTIPROCESSORS
    )
