"""Work on a GPU of which parts do not depend on each other, each part on its own stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from hybridge.runtime.engines.torch.device import TorchDevice, current_stream


class Branches:
    """``count`` parts, at most MOST_PARTS; on a CPU they run one after another.

    In a recorded CUDA graph they are branches that may run at the same time. What a part allocates is its own until the
    parts are joined: torch gives memory of one stream to no other one.
    """

    def __init__(self, device: TorchDevice, count: int) -> None:
        self._device = device
        self._streams = device.side_streams[:count]

    @contextlib.contextmanager
    def forked(self) -> Iterator[None]:
        """Parts begun inside come after the work before, and the work after comes behind all of them."""
        main = self._device.stream
        if main is not None:
            for stream in self._streams:
                stream.wait_stream(main)
        yield
        if main is not None:
            for stream in self._streams:
                main.wait_stream(stream)

    def part(self, index: int) -> AbstractContextManager[object]:
        """Work inside belongs to that part."""
        return current_stream(self._streams[index]) if self._streams else contextlib.nullcontext()
