"""ONNX initializers whose bytes stay in a file of the artifact."""

from __future__ import annotations

from pathlib import Path

import onnx

from artifact.errors import ExportError
from artifact.safetensors_file import TensorSlot


def external_initializer(name: str, slot: TensorSlot, out: Path) -> onnx.TensorProto:
    """The initializer ``name`` of the type and shape of ``slot``, stored in the file of ``slot`` below ``out``.

    Nothing is read. The location is relative to ``out``, the folder of model.onnx. ExportError: the file is not
    below ``out``. An empty tensor has no bytes to point at and is stored in place.
    """
    tensor = onnx.TensorProto(name=name, data_type=slot.dtype.onnx, dims=slot.shape)
    if slot.nbytes == 0:
        tensor.raw_data = b""
        return tensor
    try:
        location = slot.path.relative_to(out).as_posix()
    except ValueError:
        raise ExportError(f"initializer {name}: {slot.path} is not inside the artifact {out}") from None
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", slot.offset), ("length", slot.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
