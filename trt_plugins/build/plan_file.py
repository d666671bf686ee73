"""The engine file, written while TensorRT serializes it where that is possible: no second copy is held in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

_CHUNK = 1 << 24


class PlanFile:
    """A file that counts and hashes (sha256) what is appended. A failed write is kept in ``error``."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        self.nbytes = 0
        self.error: OSError | None = None

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def append(self, data: Any) -> bool:
        """Append the bytes of a buffer; False when the file cannot take them."""
        try:
            self._file.write(data)
        except OSError as error:
            # Raising would pass through TensorRT's native frames.
            self.error = self.error or error
            return False
        self._digest.update(data)
        self.nbytes += len(data)
        return True

    def close(self) -> None:
        """Flush and close; raises the OSError of this or of an earlier write."""
        try:
            self._file.close()
        except OSError as error:
            self.error = self.error or error
        if self.error is not None:
            raise self.error


def build_plan(trt: Any, builder: Any, network: Any, config: Any, file: PlanFile) -> bool:
    """Build ``network`` into ``file``; False when TensorRT fails (its logger knows why)."""
    if hasattr(builder, "build_serialized_network_to_stream"):
        return bool(builder.build_serialized_network_to_stream(network, config, _stream_writer(trt, file)))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return False
    view = memoryview(plan).cast("B")
    return all(file.append(view[start : start + _CHUNK]) for start in range(0, len(view), _CHUNK))


def _stream_writer(trt: Any, file: PlanFile) -> Any:
    class PlanWriter(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            return len(data) if file.append(data) else 0

    return PlanWriter()
