"""Control of the prefix cache: pin, save, restore, report."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.artifact.errors import RequestError
from hybridge.runtime.blocks.records import changes
from hybridge.runtime.generation import Generation, Request
from hybridge.runtime.prefix_cache.settings import EARLY, RADIX
from hybridge.runtime.serving.loop import ServingLoop

if TYPE_CHECKING:
    # Imported where it is used: a program that runs one request does not need it.
    from hybridge.runtime.prefix_cache.metrics import CacheReport
    from hybridge.runtime.serving.pinned import PinnedPrefix
    from hybridge.runtime.serving.prefix_cache import ServedCache
    from hybridge.runtime.serving.sessions import Session


class CacheControl:
    """Waits for the step in progress, if any. RequestError from all but ``reset`` without a radix tree."""

    def __init__(self, loop: ServingLoop, folder: Path) -> None:
        self._loop, self._folder, self.records = loop, folder, loop.scheduler.records

    def parts(self, request: Request) -> list[Request]:
        """Requests that store the states from which prompts that equal or extend the prompt of ``request`` start.

        An equal prompt still computes its last token, so it needs the state before it. Where prompts store none there,
        a second request that is one token shorter does.
        """
        served, ids = self._loop.served_cache, request.prompt_ids
        if served is None or not served.cache.needs.state or len(ids) == 1:
            return [request]
        if served.cache.settings.prompt_checkpoints == EARLY:
            return [request]
        return [replace(request, prompt_ids=ids[:-1]), request]

    def pin(
        self, token_ids: tuple[int, ...], name: str | None, compute: Callable[[], object], namespace: str = ""
    ) -> PinnedPrefix:
        """Pin ``token_ids`` until ``drop``; ``compute`` puts them into the cache. Errors as in PinnedPrefixes.add."""
        from hybridge.runtime.serving.pinned import PinnedPrefix, checked_name

        pinned = self._served().pinned
        name = checked_name(name, token_ids, namespace, pinned.names())

        def computed() -> None:
            compute()
            self._loop.settle()

        return pinned.add(PinnedPrefix(name, token_ids, namespace), computed)

    def drop(self, name: str) -> None:
        """Unpin a prefix; RequestError if there is none of that name."""
        self._served().pinned.drop(name)

    def reset(self) -> None:
        """Clear the cache on the device and on the host, except for pinned prefixes."""
        self._loop.settle()
        self._clear()

    @changes
    def _clear(self) -> None:
        self._loop.scheduler.manager.cache.clear()
        served = self._loop.served_cache
        if served is not None and served.host is not None:
            served.host.clear()

    def save(self, path: Path, tokens: Sequence[int], namespace: str = "") -> Session:
        """See ``sessions.save_session``."""
        from hybridge.runtime.serving.sessions import save_session

        served = self._between_steps()
        served.bring_back(tokens, namespace)
        return save_session(served.device, self._folder, path, tokens, namespace)

    def load(self, path: Path) -> Session:
        """See ``sessions.load_session``."""
        from hybridge.runtime.serving.sessions import load_session

        return load_session(self._between_steps().device, self._folder, path)

    def report(self) -> CacheReport:
        """The contents of the cache, and its counts."""
        return self._served().report(self._loop.pools.cached_bytes)

    def _served(self) -> ServedCache:
        self._loop.settle()
        if self._loop.served_cache is None:
            raise RequestError(
                f"expected a prefix cache of kind {RADIX!r}, found none: open the artifact with "
                f"serving=ServingSettings(prefix_cache={RADIX!r})"
            )
        return self._loop.served_cache

    def _between_steps(self) -> ServedCache:
        self._loop.settle()
        if not self._loop.scheduler.settled:
            raise RequestError(
                "expected no request with several answers in progress, found one: wait for its next piece"
            )
        return self._served()


def conversation_tokens(conversation: Generation | Sequence[int]) -> tuple[int, ...]:
    """The tokens of a prompt and its answer, or the given tokens; RequestError for anything else."""
    from hybridge.runtime.prefix_cache.token_key import key_from_tokens

    if isinstance(conversation, Generation):
        return (*conversation.prompt_token_ids, *conversation.token_ids)
    try:
        tokens = tuple(index(token) for token in conversation)
        key_from_tokens(tokens)
    except (TypeError, ValueError) as error:
        raise RequestError(f"expected an answer or its token ids, found {reprlib.repr(conversation)}") from error
    return tokens
