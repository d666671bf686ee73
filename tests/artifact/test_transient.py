"""Which errors a repeated call may not meet again."""

from __future__ import annotations

import errno

import pytest
import torch

from hybridge.artifact.errors import CheckpointError, HybridgeError
from hybridge.artifact.transient import is_torch_device_error, is_transient


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_transient_errors_and_what_they_cause(error: Exception) -> None:
    assert is_transient(error)
    with pytest.raises(HybridgeError) as caught:
        raise HybridgeError("a") from error
    assert is_transient(caught.value)


@pytest.mark.parametrize(
    "error", [CheckpointError("a"), OSError("no file named config.json"), RuntimeError("size of tensor a must match")]
)
def test_others(error: Exception) -> None:
    assert not is_transient(error)


def test_torch_names_its_allocator() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_torch_device_error(caught.value)
