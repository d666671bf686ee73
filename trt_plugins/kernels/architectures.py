"""GPU architectures that the kernels compile for."""

from __future__ import annotations

from hybridge.artifact.errors import UnsupportedError

# What `make kernels` compiles for: Ampere, Orin, Ada, Hopper (with its own instructions), Blackwell, Thor, RTX, Spark.
CHECKED = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_110", "sm_120", "sm_121")
MINIMUM = (8, 0)
HOPPER = (9, 0)


def architecture(capability: tuple[int, int]) -> str:
    """The NVRTC name of a compute capability: (8, 7) is sm_87, (9, 0) is sm_90a.

    UnsupportedError below 8.0, which lacks the bfloat16 and asynchronous copy instructions that the kernels use.
    """
    if capability < MINIMUM:
        raise UnsupportedError(
            f"expected a GPU of compute capability 8.0 or higher, found {capability[0]}.{capability[1]}: "
            "the kernels need bfloat16 arithmetic; use the onnxruntime engine"
        )
    suffix = "a" if capability == HOPPER else ""
    return f"sm_{capability[0]}{capability[1]}{suffix}"
