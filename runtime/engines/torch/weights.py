"""The constants of a graph as tensors: weights by reference in host memory, one copy of each on a GPU."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.artifact_graph import mapped_bytes
from hybridge.runtime.engines.torch.tensors import torch_from_dtype

FOUR_BITS = (ir.DataType.INT4, ir.DataType.FLOAT4E2M1)
_E2M1 = [sign * size for sign in (1.0, -1.0) for size in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]


class WeightStore:
    """Constants shared by all programs of an engine.

    In host memory a weight stays mapped from its safetensors file, and ``folded`` holds what programs have computed of
    weights alone, by value name. A GPU gets one copy of every weight that a step reads there.
    """

    def __init__(self, folder: Path, device: torch.device, shared: WeightStore | None = None) -> None:
        """``shared``: the store of another graph in ``folder``; weights of both are loaded once."""
        self._folder, self.device = folder, device
        self._mapped: dict[tuple, torch.Tensor] = {} if shared is None else shared._mapped
        # Bytes on the device by the address of the same bytes in host memory, which stay where they are.
        self._uploaded: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = (
            {} if shared is None else shared._uploaded
        )
        self.folded: dict[str, torch.Tensor] = {}

    def tensor(self, value: ir.Value) -> torch.Tensor:
        """An initializer in host memory; ArtifactError when its file is missing or cut."""
        constant = value.const_value
        assert constant is not None
        if not isinstance(constant, ir.ExternalTensor):
            return tensor_from_ir(constant)
        if constant.dtype in FOUR_BITS:
            return self._unpacked(constant)
        key = (str(constant.location), constant.offset, constant.dtype, tuple(constant.shape))
        if key not in self._mapped:
            self._mapped[key] = self._load(constant)
        return self._mapped[key]

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, a constant, where steps read it. Scalars stay in host memory: torch passes them by value."""
        if self.device.type == "cpu" or tensor.ndim == 0 or tensor.device == self.device:
            return tensor
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._uploaded:
            raw = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            self._uploaded[address] = storage, raw.to(self.device)
        _, there = self._uploaded[address]
        there = there[: storage.nbytes() // tensor.itemsize * tensor.itemsize].view(tensor.dtype)
        return there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def memory_use(self) -> dict[str, int]:
        """Bytes of the weights where steps read them, for reports."""
        if self.device.type != "cpu":
            made = sum(tensor.nbytes for tensor in self.folded.values() if tensor.device == self.device)
            return {"weights": made + sum(tensor.nbytes for _, tensor in self._uploaded.values())}
        mapped = sum(tensor.nbytes for tensor in self._mapped.values())
        return {"weights": self.computed_bytes, "weights mapped from files": mapped}

    @property
    def computed_bytes(self) -> int:
        """Bytes of host memory of what was computed from weights."""
        mapped = {tensor.untyped_storage().data_ptr() for tensor in self._mapped.values()}
        storages = (tensor.untyped_storage() for tensor in self.folded.values() if _is_host_number(tensor))
        return sum({item.data_ptr(): item.nbytes() for item in storages if item.data_ptr() not in mapped}.values())

    def _unpacked(self, tensor: ir.ExternalTensor) -> torch.Tensor:
        """Numbers of 4 bits as int8 or float16; not kept."""
        shape = tuple(int(n) for n in tensor.shape.numpy())
        raw = torch.from_numpy(mapped_bytes(tensor, self._folder, copy_on_write=True))
        pairs = torch.stack([raw & 15, raw >> 4], dim=-1).reshape(-1)[: math.prod(shape)].reshape(shape)
        if tensor.dtype == ir.DataType.INT4:
            return (pairs ^ 8).to(torch.int8) - 8
        return torch.tensor(_E2M1, dtype=torch.float16)[pairs.long()]

    def _load(self, tensor: ir.ExternalTensor) -> torch.Tensor:
        # Mapped copy-on-write, as torch wants memory that it could write to.
        raw = mapped_bytes(tensor, self._folder, copy_on_write=True)
        dtype = DType.from_onnx(int(tensor.dtype))
        if (tensor.offset or 0) % dtype.itemsize:
            raw = np.array(raw)
        shape = tuple(int(n) for n in tensor.shape.numpy())
        return torch.from_numpy(raw).view(torch_from_dtype(dtype)).reshape(shape)


def _is_host_number(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_floating_point()


def tensor_from_ir(tensor: ir.TensorProtocol) -> torch.Tensor:
    """A copy of a tensor that the graph itself carries."""
    dtype = DType.from_onnx(int(tensor.dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the bytes are private, so that writable memory is safe
        raw = torch.frombuffer(bytearray(tensor.tobytes()) or bytearray(8), dtype=torch_from_dtype(dtype))
    return raw[: tensor.size].reshape(tuple(int(n) for n in tensor.shape.numpy()))
