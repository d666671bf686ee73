"""What a failed build advises, by TensorRT's own message."""

from __future__ import annotations

import pytest

from hybridge.trt_plugins.build.build_log import explain

# As TensorRT-RTX 1.7 says it when the limit of a process's memory is too small for the weights.
WEIGHTS = (
    "[myelinResourceManager.cpp::virtual void* nvinfer1::rt::MyelinHostBuffer::allocate(const string&, "
    "cudaStream_t)::206] Error Code 2: OutOfMemory (Requested size was 291914623 bytes.)"
)
MAPPING = "WeightsContextMemoryMap.cpp:140: Failed to map file to memory: weights/model.safetensors"
WORKSPACE = "[builder.cpp::build::10] Error Code 2: OutOfMemory (Requested size was 4096 bytes.)"


@pytest.mark.parametrize(
    ("errors", "advised", "not_advised"),
    [
        ([WEIGHTS], "a machine with more", "workspace"),
        (["could not build", WEIGHTS], "a machine with more", "workspace"),
        (["cannot read", MAPPING], "a machine with more", "workspace"),
        ([WORKSPACE], "prefill.max_seq", "a machine with more"),
        (["no kernel"], "no kernel", "memory"),
    ],
    ids=["weights", "weights later", "file of weights", "workspace", "other"],
)
def test_advice_on_memory(errors: list[str], advised: str, not_advised: str) -> None:
    text = explain(errors)
    assert advised in text and not_advised not in text
