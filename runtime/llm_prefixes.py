"""What LLM does with prefixes and conversations that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation import DenseStreams, Generation, Prefix
from hybridge.runtime.generation.call import Messages, checked_namespace
from hybridge.runtime.generation.prompts import Prompt
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.prefix_cache.metrics import CacheReport
from hybridge.runtime.serving.cache_control import CacheControl, conversation_tokens
from hybridge.runtime.serving.pinned import PinnedPrefix, read_prefixes
from hybridge.runtime.serving.sessions import Session
from hybridge.runtime.serving.stream import PieceStreams
from hybridge.runtime.turns import Turns


class PrefixMethods:
    """The part of LLM that is about its prefix cache. Each method takes one turn, RequestError when the LLM is closed.

    ``namespace``: of prompts that share computed blocks; for artifacts of layout paged.
    """

    max_seq_len: int
    _turns: Turns
    _text: ModelText
    _streams: DenseStreams | PieceStreams
    _cache: CacheControl | None

    def cache_prefix(
        self, prompt: Prompt | Messages, name: str | None = None, namespace: str = ""
    ) -> Prefix | PinnedPrefix:
        """Compute the state after ``prompt`` once; later prompts whose tokens begin with it start from there.

        ``prompt`` is text, token ids or the first messages of conversations (a system prompt). Only equal tokens
        count: a text is tokenized alone, so let it end where a token ends. The prefix stays until it is dropped.
        A paged artifact needs a prefix cache of kind "radix" for it, and keeps the prefix by ``name``. RequestError
        when its pools are too small for it.
        """
        self._turns.check_open()
        request = self._text.prefix_request(prompt, self.max_seq_len, name)
        with self._turns.turn():
            streams = self._streams
            if not isinstance(streams, DenseStreams):
                inside = checked_namespace(namespace)
                compute = lambda: list(streams.pieces([request], namespace=inside))  # noqa: E731
                return self._control().pin(request.prompt_ids, name, compute, inside)
            if namespace:
                self._control()
            return streams.prefixes.add(request.prompt_ids)

    def cache_prefixes(self, path: str | Path, namespace: str = "") -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}, paged only."""
        self._control()
        prefixes = read_prefixes(Path(path))
        return [cast(PinnedPrefix, self.cache_prefix(prompt, name, namespace)) for name, prompt in prefixes]

    def drop_prefix(self, prefix: Prefix | PinnedPrefix | str) -> None:
        """Forget ``prefix``, of a paged artifact also by its name, and free its memory."""
        with self._turns.turn():
            if isinstance(prefix, Prefix):
                if not isinstance(self._streams, DenseStreams):
                    raise RequestError("expected a prefix of this artifact, found one of a dense artifact: use its own")
                self._streams.prefixes.remove(prefix)
            else:
                self._control().drop(prefix.name if isinstance(prefix, PinnedPrefix) else prefix)

    def keep_answers(self) -> None:
        """From now on keep the state after the latest answer: a prompt that goes on from it starts there.

        For a dense artifact. Of a paged one the prefix cache keeps answers, as ``ServingSettings`` say.
        """
        with self._turns.turn():
            if isinstance(self._streams, DenseStreams):
                self._streams.prefixes.keeps_answers = True

    def reset_prefix_cache(self) -> None:
        """Forget all that is kept for later prompts but prefixes of ``cache_prefix``, which ``drop_prefix`` forgets.

        Prompts under way go on. Of a dense artifact that is the answer of ``keep_answers``.
        """
        with self._turns.turn():
            if self._cache is not None:
                self._cache.reset()
            elif isinstance(self._streams, DenseStreams):
                self._streams.prefixes.forget_answer()

    def save_session(self, path: str | Path, conversation: Generation | Sequence[int], namespace: str = "") -> Session:
        """Write what is known of a conversation (tokens, KV and states) to the file ``path``, whole or not at all.

        ``conversation`` is an answer, which stands for its prompt too, or token ids. For paged artifacts with a prefix
        cache of kind "radix". RequestError when the cache does not know these tokens any more.
        """
        with self._turns.turn():
            return self._control().save(Path(path), conversation_tokens(conversation), namespace)

    def load_session(self, path: str | Path) -> Session:
        """Take a saved session into the prefix cache: a prompt that begins with its tokens goes on from there.

        RequestError when the file is damaged, of other weights or another version, or does not fit.
        """
        with self._turns.turn():
            return self._control().load(Path(path))

    def prefix_cache_report(self) -> CacheReport:
        """Hits and misses with their reasons, what is held, what had to go; RequestError without a radix tree."""
        with self._turns.turn():
            return self._control().report()

    def _control(self) -> CacheControl:
        if self._cache is None:
            raise RequestError("expected an artifact of layout paged, found a dense one: export with --layout paged")
        return self._cache
