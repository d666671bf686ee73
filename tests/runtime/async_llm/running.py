"""Runs a coroutine that takes an AsyncLLM, and checks that nothing is left when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.toy_paged_engine import ToyPagedEngine

SETTINGS = ServingSettings(block_size=4, memory_bytes=20_000)
RADIX = ServingSettings(block_size=4, memory_bytes=40_000, prefix_cache="radix")
T = TypeVar("T")


def run(
    folder: Path,
    engine: ToyPagedEngine,
    work: Callable[[AsyncLLM], Awaitable[T]],
    settings: ServingSettings = SETTINGS,
) -> T:
    """The result of ``work``, within 60 seconds; checks that the AsyncLLM became idle and closed the engine."""

    async def main() -> T:
        async with AsyncLLM(folder, engine, serving=settings) as llm:
            result = await asyncio.wait_for(work(llm), 60)
            while llm.loop.busy:
                await asyncio.sleep(0.01)
            return result

    result = asyncio.run(main())
    assert engine.closed
    return result
