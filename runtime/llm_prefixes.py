"""LLM's methods for cached prefixes and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.artifact.call_arguments import checked_path
from hybridge.runtime.generation import Generation
from hybridge.runtime.generation.call import Messages, checked_namespace
from hybridge.runtime.generation.prompts import Prompt
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.serving.cache_control import CacheControl, conversation_tokens
from hybridge.runtime.serving.stream import PieceStreams
from hybridge.runtime.turns import Turns

if TYPE_CHECKING:
    from hybridge.runtime.prefix_cache.metrics import CacheReport
    from hybridge.runtime.serving.pinned import PinnedPrefix
    from hybridge.runtime.serving.sessions import Session


class PrefixMethods:
    """The prefix cache methods of LLM. Each takes one turn; RequestError when the LLM is closed.

    ``namespace``: cached prefixes are shared only within one.
    """

    max_seq_len: int
    _turns: Turns
    _text: ModelText
    _streams: PieceStreams
    _cache: CacheControl

    def cache_prefix(self, prompt: Prompt | Messages, name: str | None = None, namespace: str = "") -> PinnedPrefix:
        """Compute ``prompt`` once and keep its KV and state; later prompts that begin with its tokens start from there.

        ``prompt`` is text, token ids or the first messages of conversations (a system prompt). Tokens must
        match: a text is tokenized alone, so it should end at a token boundary. The prefix stays until it is dropped, by
        ``name``. RequestError without a prefix cache of kind "radix", which dense artifacts have by default, or when
        the pools are too small for it.
        """
        self._turns.check_open()
        request = self._text.prefix_request(prompt, self.max_seq_len, name)
        inside = checked_namespace(namespace)

        def compute() -> None:
            for part in self._cache.parts(request):
                list(self._streams.pieces([part], namespace=inside))

        return self._turns.run(self._cache.pin, request.prompt_ids, name, compute, inside)

    def cache_prefixes(self, path: str | Path, namespace: str = "") -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}."""
        from hybridge.runtime.serving.pinned import read_prefixes

        prefixes = read_prefixes(checked_path("path", path))
        return [self.cache_prefix(prompt, name, namespace) for name, prompt in prefixes]

    def drop_prefix(self, prefix: PinnedPrefix | str) -> None:
        """Unpin a prefix, given itself or by name: from now on it may be evicted."""
        # Anything else is refused like an unknown name.
        self._turns.run(self._cache.drop, prefix.name if hasattr(prefix, "name") else prefix)

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache, except prefixes of ``cache_prefix``, which ``drop_prefix`` removes.

        Running prompts continue.
        """
        self._turns.run(self._cache.reset)

    def save_session(self, path: str | Path, conversation: Generation | Sequence[int], namespace: str = "") -> Session:
        """Write the tokens, KV and states of a conversation to the file ``path``, atomically.

        ``conversation`` is an answer (its prompt included) or token ids. Needs a prefix cache of kind
        "radix". RequestError when these tokens are no longer in the cache.
        """
        file, tokens = checked_path("path", path), conversation_tokens(conversation)
        return self._turns.run(self._cache.save, file, tokens, namespace)

    def load_session(self, path: str | Path) -> Session:
        """Load a saved session into the prefix cache: prompts that begin with its tokens continue from there.

        RequestError when the file is damaged, of other weights or another version, or does not fit.
        """
        return self._turns.run(self._cache.load, checked_path("path", path))

    def prefix_cache_report(self) -> CacheReport:
        """Hits, misses with their reasons, contents and evictions; RequestError without a radix tree."""
        return self._turns.run(self._cache.report)
