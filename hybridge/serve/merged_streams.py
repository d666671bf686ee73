"""The pieces of several prompts of one request, in the order in which they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from hybridge.runtime.generation import Piece
from hybridge.runtime.serving.request_stream import RequestStream


async def merged(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, list[Piece]]]:
    """The pieces of all ``streams`` as they arrive, each batch with its stream's index; the first error ends all."""
    if len(streams) == 1:
        while batch := await streams[0].batch():
            yield 0, batch
        return
    arrived: asyncio.Queue[tuple[int, list[Piece] | Exception]] = asyncio.Queue()

    async def read(index: int, stream: RequestStream) -> None:
        try:
            batch = None
            while batch is None or batch:
                batch = await stream.batch()
                arrived.put_nowait((index, batch))
        except Exception as error:
            arrived.put_nowait((index, error))

    tasks = [asyncio.ensure_future(read(index, stream)) for index, stream in enumerate(streams)]
    left = len(streams)
    try:
        while left:
            index, found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            left -= not found
            if found:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()
