"""The doubles refuse what the real classes of TensorRT and cuda.core refuse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.checked_double import CheckedDouble

trt = pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
core = pytest.importorskip("cuda.core", reason="needs cuda-core (extra cuda)")

CONTEXT = CheckedDouble(
    trt.IExecutionContext,
    SimpleNamespace(
        set_tensor_address=lambda name, memory: True, set_input_shape=lambda name, shape: True, debug_sync=False
    ),
)
DEVICE = CheckedDouble(core.Device, SimpleNamespace(allocate=lambda size, stream: None))


def test_right_calls_pass() -> None:
    assert CONTEXT.set_tensor_address("x", 5) and CONTEXT.set_tensor_address(name="x", memory=5)
    assert CONTEXT.set_input_shape("x", (1, 2)) and CONTEXT.set_input_shape("x", [1, 2])
    CONTEXT.debug_sync = True
    DEVICE.allocate(5, stream=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CONTEXT.set_tensor_address("x"),
        lambda: CONTEXT.set_tensor_address("x", 5, 6),
        lambda: CONTEXT.set_tensor_address("x", address=5),
        lambda: CONTEXT.set_tensor_address(5, 5),
        lambda: CONTEXT.set_input_shape("x", 7),
        lambda: CONTEXT.execute_async_v3(0),
        lambda: setattr(CONTEXT, "set_tensor_address", None),
    ],
)
def test_wrong_calls_of_tensorrt_fail(call: object) -> None:
    with pytest.raises(AssertionError):
        call()  # type: ignore[operator]


def test_attributes_that_do_not_exist_fail() -> None:
    with pytest.raises(AttributeError, match="IExecutionContext has no attribute set_tensor_adress"):
        CONTEXT.set_tensor_adress("x", 5)


@pytest.mark.parametrize("call", [lambda: DEVICE.allocate(5, None), lambda: DEVICE.allocate(nbytes=5, stream=None)])
def test_wrong_calls_of_cuda_core_fail(call: object) -> None:
    with pytest.raises(AssertionError):
        call()  # type: ignore[operator]
