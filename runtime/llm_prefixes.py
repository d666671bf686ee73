"""What LLM does with prefixes and conversations that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    """The part of LLM that is about its prefix cache. Each method takes one turn, RequestError when the LLM is closed.

    ``namespace``: of prompts that share what was computed.
    """

    max_seq_len: int
    _turns: Turns
    _text: ModelText
    _streams: PieceStreams
    _cache: CacheControl

    def cache_prefix(self, prompt: Prompt | Messages, name: str | None = None, namespace: str = "") -> PinnedPrefix:
        """Compute the state after ``prompt`` once; later prompts whose tokens begin with it start from there.

        ``prompt`` is text, token ids or the first messages of conversations (a system prompt). Only equal tokens
        count: a text is tokenized alone, so let it end where a token ends. The prefix stays until it is dropped, by
        ``name``. RequestError without a prefix cache of kind "radix", which dense artifacts have by default, or when
        the pools are too small for it.
        """
        self._turns.check_open()
        request = self._text.prefix_request(prompt, self.max_seq_len, name)
        inside = checked_namespace(namespace)

        def compute() -> None:
            for part in self._cache.parts(request):
                list(self._streams.pieces([part], namespace=inside))

        with self._turns.turn():
            return self._cache.pin(request.prompt_ids, name, compute, inside)

    def cache_prefixes(self, path: str | Path, namespace: str = "") -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}."""
        from hybridge.runtime.serving.pinned import read_prefixes

        prefixes = read_prefixes(Path(path))
        return [self.cache_prefix(prompt, name, namespace) for name, prompt in prefixes]

    def drop_prefix(self, prefix: PinnedPrefix | str) -> None:
        """Forget a prefix, which may be given by its name: it is evicted like any other from now on."""
        with self._turns.turn():
            # Whatever is neither is refused like an unknown name.
            self._cache.drop(prefix.name if hasattr(prefix, "name") else prefix)

    def keep_answers(self) -> None:
        """Does nothing: a prefix cache of kind "radix", which dense artifacts have by default, keeps answers."""
        self._turns.check_open()

    def reset_prefix_cache(self) -> None:
        """Forget all that is kept for later prompts but prefixes of ``cache_prefix``, which ``drop_prefix`` forgets.

        Prompts under way go on.
        """
        with self._turns.turn():
            self._cache.reset()

    def save_session(self, path: str | Path, conversation: Generation | Sequence[int], namespace: str = "") -> Session:
        """Write what is known of a conversation (tokens, KV and states) to the file ``path``, whole or not at all.

        ``conversation`` is an answer (its prompt included) or token ids. Needs a prefix cache of kind
        "radix". RequestError when the cache does not know these tokens any more.
        """
        with self._turns.turn():
            return self._cache.save(Path(path), conversation_tokens(conversation), namespace)

    def load_session(self, path: str | Path) -> Session:
        """Take a saved session into the prefix cache: a prompt that begins with its tokens goes on from there.

        RequestError when the file is damaged, of other weights or another version, or does not fit.
        """
        with self._turns.turn():
            return self._cache.load(Path(path))

    def prefix_cache_report(self) -> CacheReport:
        """Hits and misses with their reasons, what is held, what had to go; RequestError without a radix tree."""
        with self._turns.turn():
            return self._cache.report()
