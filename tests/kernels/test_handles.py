"""Streams and pointers of other libraries: each protocol, and invalid objects."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.handles import device_address, stream_handle


class Protocol:
    def __cuda_stream__(self):
        return (0, 77)


class Integer:
    """pycuda's DeviceAllocation."""

    def __int__(self):
        return 4096


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (5, 5),
        (Protocol(), 77),
        (SimpleNamespace(__cuda_stream__=(0, 78)), 78),
        (SimpleNamespace(cuda_stream=79), 79),
        (SimpleNamespace(handle=Integer()), 4096),
        (SimpleNamespace(ptr=80), 80),
    ],
)
def test_streams(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    ("pointer", "address"),
    [
        (None, 0),
        (16, 16),
        (Integer(), 4096),
        (SimpleNamespace(data_ptr=lambda: 32), 32),
        (SimpleNamespace(__cuda_array_interface__={"data": (48, False)}), 48),
        (SimpleNamespace(handle=Integer()), 4096),
    ],
)
def test_pointers(pointer, address):
    assert device_address(pointer) == address


def test_cuda_core_streams_have_the_protocol():
    core = pytest.importorskip("cuda.core", reason="needs cuda-core (extra cuda)")
    assert hasattr(core.Stream, "__cuda_stream__")


@pytest.mark.parametrize("function", [stream_handle, device_address])
def test_anything_else_is_refused(function):
    with pytest.raises(EngineError, match="found list; pass its integer handle"):
        function([])
