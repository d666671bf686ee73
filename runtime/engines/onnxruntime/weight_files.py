"""The files that hold an artifact's weights: each opened and checked once, mapped or read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.limits import MIB
from hybridge.artifact.mapped_file import map_open
from hybridge.artifact.untrusted_file import open_inside, size_of
from hybridge.runtime.engines.onnxruntime.session_graph import StoredTensor

# Smaller tensors are read through the map of the whole file: to map each takes longer, and their pages need little
# memory.
_SMALL = MIB // 4
# At most so many bytes are between two tensors that are moved to huge pages together, and are moved with them.
_GAP = 2 * MIB


class WeightFiles:
    """Maps of the files in ``folder``, each of a whole file, so that neighbouring tensors can share huge pages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, np.ndarray] = {}

    def open(self) -> OpenFiles:
        """The files for a while; close it."""
        return OpenFiles(self._folder, self._maps)

    def parts(self, tensors: Iterable[StoredTensor]) -> list[np.ndarray]:
        """The bytes of mapped ``tensors``, each [nbytes] uint8; those that are close together in one array."""
        found: list[tuple[str, int, int]] = []
        for location, start, stop in sorted((t.location, t.offset, t.offset + _nbytes(t)) for t in tensors):
            if found and found[-1][0] == location and start <= found[-1][2] + _GAP:
                found[-1] = location, found[-1][1], max(stop, found[-1][2])
            else:
                found.append((location, start, stop))
        return [self._maps[location][start:stop] for location, start, stop in found]


class OpenFiles(ExitStack):
    """Open files of an artifact. ArtifactError when one is missing, too short or outside of the artifact."""

    def __init__(self, folder: Path, maps: dict[str, np.ndarray]) -> None:
        super().__init__()
        self._folder, self._maps = folder, maps
        self._files: dict[str, BinaryIO] = {}

    def mapped(self, tensor: StoredTensor) -> np.ndarray:
        """The tensor's bytes [nbytes] uint8 in the map of its file."""
        name, stop = tensor.location, tensor.offset + _nbytes(tensor)
        if name not in self._maps:
            file = self._file(tensor)
            self._maps[name] = map_open(file, self._folder / name, 0, size_of(file)).view(np.ndarray)
        whole = self._maps[name]
        if whole.size < stop:
            raise self._truncated(tensor, whole.size)
        return whole[tensor.offset : stop]

    def bytes_of(self, tensor: StoredTensor) -> np.ndarray:
        """The tensor's bytes [nbytes] uint8. Large ones have a map of their own, whose pages are released with it."""
        nbytes = _nbytes(tensor)
        if nbytes < _SMALL:
            return self.mapped(tensor)
        return map_open(self._file(tensor), self._folder / tensor.location, tensor.offset, nbytes)

    def read(self, tensor: StoredTensor, out: np.ndarray) -> None:
        """Copy the tensor's bytes to ``out``. Mapped pages would count as memory of the process until then."""
        file, target = cast(BufferedReader, self._file(tensor)), out.reshape(-1).data
        file.seek(tensor.offset)
        while target:
            count = file.readinto(target)
            if not count:
                raise self._truncated(tensor, size_of(file))
            target = target[count:]

    def _truncated(self, tensor: StoredTensor, size: int) -> ArtifactError:
        return ArtifactError(
            f"{self._folder / tensor.location}: expected {tensor.offset + _nbytes(tensor)} bytes, found {size}: the "
            "file is truncated: export the checkpoint again"
        )

    def _file(self, tensor: StoredTensor) -> BinaryIO:
        name = tensor.location
        if name not in self._files:
            self._files[name] = self.enter_context(open_inside(self._folder, name, None))
        return self._files[name]


def _nbytes(tensor: StoredTensor) -> int:
    return tensor.dtype.nbytes(math.prod(tensor.shape))
