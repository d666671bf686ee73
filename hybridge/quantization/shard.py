"""Weight files, each written from a file of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.progress import Progress
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot, copy_tensor, has_header_of, read_safetensors
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.artifact.untrusted_file import open_inside
from hybridge.exporter.rounding.blocks import row_blocks
from hybridge.quantization.matrix import MatrixReport, write_matrix
from hybridge.quantization.scaled import ScaledTensor
from hybridge.quantization.scheme import MatrixContext, Scheme


def create_shard(
    source: SafetensorsFile, target: Path, schemes: Mapping[str, Scheme], scale: DType, progress: Progress
) -> SafetensorsFile:
    """Write the tensors of ``source`` to the new file ``target``, with room for those of the modules in ``schemes``.

    scale: the type of scales. CheckpointError: ``source`` is damaged. OSError: the disk is full.
    """
    layout: dict[str, tuple[DType, tuple[int, ...]]] = {}
    copies = []
    for name, slot in source.tensors.items():
        module = name.removesuffix(".weight")
        if module in schemes and module != name:
            rows, columns = slot.shape
            parts = schemes[module].layout(rows, columns, scale)
            layout.update({f"{module}.{part}": kind for part, kind in parts.items()})
        else:
            layout[name] = (slot.dtype, slot.shape)
            copies.append(slot)
    # Wider elements come first: every tensor is aligned to its own.
    layout = dict(sorted(layout.items(), key=lambda item: -item[1][0].itemsize))
    with target.open("xb") as file:
        file.write(safetensors_header(layout))
        file.flush()
        file.truncate(file.tell() + sum(_nbytes(*kind) for kind in layout.values()))
        created = read_safetensors(target)
        with open_inside(source.path.parent, source.path.name, None, CheckpointError, "fetch it again") as reader:
            for slot in copies:
                file.seek(created.tensors[slot.name].offset)
                copy_tensor(reader, slot, file)
                progress.advance(slot.nbytes)
    return created


def fill_matrix(
    weight: ScaledTensor, placed: Mapping[str, TensorSlot], scheme: Scheme, context: MatrixContext
) -> MatrixReport:
    """Quantise ``weight`` into the file with the tensors ``placed``."""
    module = weight.slot.name.removesuffix(".weight")
    parts = {part: placed[f"{module}.{part}"] for part in scheme.layout(1, 1, context.scale)}
    target = next(iter(parts.values())).path
    with target.open("r+b") as file:
        return write_matrix(file, weight, scheme, context, {part: each.offset for part, each in parts.items()})


def fill_tensor(tensor: ScaledTensor, target: TensorSlot) -> None:
    """Write a vector or a matrix in its own type to ``target``; CheckpointError: it does not fit the type."""
    shape = target.shape if len(target.shape) == 2 else (target.shape[0], 1)
    with target.path.open("r+b") as file:
        file.seek(target.offset)
        for block in row_blocks(*shape):
            with np.errstate(over="ignore"):
                values = tensor.rows(block).astype(target.dtype.numpy)
            if not np.isfinite(values.astype(np.float32)).all():
                raise CheckpointError(
                    f"{tensor.slot.path}: tensor {target.name} is out of the range of {target.dtype.value} when it is "
                    "scaled: choose the method mse"
                )
            file.write(values.tobytes())


def check_unchanged(source: SafetensorsFile) -> None:
    """CheckpointError when the file was replaced since it was opened."""
    if not has_header_of(source.path, source.path.parent, source):
        raise CheckpointError(f"{source.path}: changed while it was read: run again")


def _nbytes(dtype: DType, shape: tuple[int, ...]) -> int:
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count
