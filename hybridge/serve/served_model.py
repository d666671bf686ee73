"""A loaded model: its engine, its running requests, and whether it is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.artifact.manifest import read_manifest
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.settings import GIB, ServingSettings
from hybridge.runtime.speculation import DraftModel, SpeculationSettings
from hybridge.runtime.speculation.settings import MTP, NGRAM
from hybridge.serve.errors import OVERLOADED, RATE_LIMIT, ApiError
from hybridge.serve.grammars import Grammars
from hybridge.serve.settings import ModelSettings

_CHECKS = "checks"
# Ratio of an engine's weights to those in the files: CPU engines widen them to float32.
_WIDENED = 2


@dataclass(eq=False)
class ServedModel:
    """``running``: sequences that were admitted and have not ended. ``failed``: the last step ended in an error."""

    name: str
    llm: AsyncLLM
    embeddings: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    running: int = 0
    failed: bool = False
    grammars: Grammars = field(init=False)

    def __post_init__(self) -> None:
        self.grammars = Grammars(self.llm)

    def close(self) -> None:
        """End all requests, and release the engine."""
        self.llm.close()
        self.grammars.close()

    async def check(self) -> None:
        """Compute a token; EngineError when the engine cannot."""
        bos = None if self.llm.tokenizer is None else self.llm.tokenizer.bos_token_id
        await self.llm.generate([bos or 0], max_new_tokens=1, namespace=_CHECKS)
        self.failed = False

    async def admit(self, sequences: int, max_waiting: int) -> Callable[[], None]:
        """Count sequences that start now; the result ends them. ApiError 429 when too many wait already.

        Its Retry-After is the scheduler's own estimate of when a row becomes free.
        """
        if self.running and self.running + sequences > self.llm.max_batch_size + max_waiting:
            seconds = await self.llm.seconds_until_free_row()
            raise ApiError(
                429,
                f"model {self.name}: expected at most {max_waiting} waiting requests, found that many: try again later",
                RATE_LIMIT,
                "queue_full",
                retry_after=seconds,
            )
        self.running += sequences

        def end() -> None:
            self.running -= sequences

        return end

    @property
    def nbytes(self) -> int:
        """Memory of the engine and its pools."""
        pools = self.llm.loop.pools
        return sum(pools.engine_memory.values()) + pools.pool_bytes


def estimated_bytes(settings: ModelSettings) -> int:
    """Memory that a model will take, before it is loaded."""
    files = read_manifest(settings.path).files
    weights = sum(record.nbytes for record in files if record.path.endswith(".safetensors"))
    return _WIDENED * weights + (GIB if settings.memory_bytes is None else settings.memory_bytes)


def open_model(settings: ModelSettings) -> ServedModel:
    """Load the artifact; errors as of AsyncLLM."""
    serving = ServingSettings(
        memory_bytes=settings.memory_bytes,
        policy=Priority(),
        prefix_cache=PrefixCacheSettings(host_bytes=settings.host_bytes),
        speculation=_speculation(settings),
        ring_rows=settings.ring_rows,
        hidden_states=settings.embeddings,
    )
    llm = AsyncLLM(
        settings.path,
        settings.engine,
        settings.max_batch_size,
        settings.max_seq_len,
        settings.threads,
        settings.engine_folder,
        serving,
    )
    return ServedModel(settings.name, llm, settings.embeddings)


def _speculation(settings: ModelSettings) -> SpeculationSettings | None:
    if settings.draft is None and settings.draft_tokens is None:
        return None
    named = settings.draft or NGRAM
    drafter = named if named in (NGRAM, MTP) else DraftModel(named)
    return SpeculationSettings(settings.draft_tokens or SpeculationSettings.tokens, drafter)


def loading_error(name: str, error: HybridgeError) -> ApiError:
    """The error for a model that could not be loaded on demand. Paths of the server appear only in its log."""
    kind = "the engine" if isinstance(error, EngineError) else "the artifact"
    return ApiError(503, f"model {name}: {kind} could not be loaded: see the server's log", OVERLOADED, "not_loaded")
