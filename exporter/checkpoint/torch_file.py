"""Where the tensors of a PyTorch file are, without loading them: torch's reader for weights alone, which runs no code.

A PyTorch file is a ZIP archive of a pickle and of one uncompressed entry for each storage.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.limits import SAFETENSORS_HEADER_BYTES
from hybridge.artifact.safetensors_file import SafetensorsFile, TensorSlot
from hybridge.artifact.untrusted_file import open_inside, size_of

TORCH_FILE = "pytorch_model.bin"


def read_torch_file(path: Path) -> SafetensorsFile:
    """The tensors of ``path``, as those of a safetensors file are given.

    CheckpointError: damaged, or something else than tensors in it. UnsupportedError: tensors that are not stored whole
    and in order, or no torch to read it with.
    """
    with open_inside(path.parent, path.name, None, CheckpointError, "fetch it again") as file:
        pickle_sha256 = _check_archive(file, path)
        size = size_of(file)
        file.seek(0)
        entries = _fake_tensors(file, path)
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{path}: expected an object of tensors, found {type(entries).__name__}")
    slots = {}
    for name, tensor in entries.items():
        slots[str(name)] = _slot(str(name), tensor, path, size)
    return SafetensorsFile(path, slots, {}, 0, size, pickle_sha256)


def _check_archive(file: BinaryIO, path: Path) -> str:
    """Check what torch's reader takes for granted: entries without compression, and a pickle of bounded size.

    Returns the hash of the pickle, which says what tensors there are.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            _check_entries(entries, path)
            pickles = [archive.read(entry) for entry in entries if entry.filename.endswith("data.pkl")]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{path}: expected a PyTorch file of version 1.6 or later, found none: {error}: fetch it again, or convert "
            "it with transformers' save_pretrained"
        ) from error
    return hashlib.sha256(b"".join(pickles)).hexdigest()


def _check_entries(entries: list[zipfile.ZipInfo], path: Path) -> None:
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{path}: {entry.filename}: expected an entry without compression, found one with it")
        if entry.filename.endswith(".pkl") and entry.file_size > SAFETENSORS_HEADER_BYTES:
            raise CheckpointError(f"{path}: {entry.filename}: expected at most {SAFETENSORS_HEADER_BYTES} bytes")


def _fake_tensors(file: BinaryIO, path: Path) -> Any:
    """Contents of the pickle; its tensors have the offset of their storage in the file, but no data."""
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: expected torch to read a PyTorch file with, found none: pip install 'hybridge[export]'"
        ) from error
    try:
        with FakeTensorMode():
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises errors of any type
        reason = str(error).split("\n", 1)[0]
        raise CheckpointError(
            f"{path}: expected a PyTorch file of tensors alone, found another or a damaged one ({reason[:200]}): fetch "
            "it again"
        ) from error


def _slot(name: str, tensor: Any, path: Path, size: int) -> TensorSlot:
    offset = getattr(getattr(tensor, "untyped_storage", lambda: None)(), "_checkpoint_offset", None)
    if offset is None:
        raise CheckpointError(f"{path}: {name}: expected a tensor, found {type(tensor).__name__}")
    known = {dtype.value: dtype for dtype in DType}
    dtype = known.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or not tensor.is_contiguous():
        found = tensor.dtype if dtype is None else "a view with strides"
        raise UnsupportedError(f"{path}: {name}: expected a tensor of {', '.join(known)}, stored whole, found {found}")
    start = offset + tensor.storage_offset() * dtype.itemsize
    nbytes = math.prod(tensor.shape) * dtype.itemsize
    if not 0 <= offset <= start <= start + nbytes <= size:
        raise CheckpointError(f"{path}: tensor {name} ends at byte {start + nbytes}, found {size}: fetch it again")
    return TensorSlot(name, dtype, tuple(tensor.shape), path, start, nbytes)
