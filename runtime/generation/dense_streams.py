"""Calls on one dense engine, each an iterator of its own pieces."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence

from hybridge.artifact.errors import RequestError
from hybridge.runtime.engines.base import Engine
from hybridge.runtime.generation.loop import generate_pieces
from hybridge.runtime.generation.prefix import PrefixStore
from hybridge.runtime.generation.request import Request
from hybridge.runtime.generation.results import Piece
from hybridge.runtime.generation.sequence import Sequence as RunningSequence
from hybridge.runtime.sampling import PromptLogprobs
from hybridge.runtime.text import Tokenizer


class DenseStreams:
    """Batches of at most ``max_rows`` prompts, which begin with what ``prefixes`` keeps."""

    def __init__(self, engine: Engine, max_rows: int, eos: Iterable[int], tokenizer: Tokenizer | None) -> None:
        self.prefixes = PrefixStore(engine)
        self._engine, self._max_rows, self._eos, self._tokenizer = engine, max_rows, tuple(eos), tokenizer

    def pieces(self, requests: Sequence[Request]) -> Generator[Piece]:
        """The pieces of ``requests``, which are marked with their place, as they come.

        RequestError, at once, for one that wants more than one answer. Nothing is computed before the first piece is
        asked for.
        """
        started = time.perf_counter()
        for request in requests:
            if request.params.n > 1 or request.params.beam_width:
                raise RequestError(
                    "n and beam_width: expected an artifact of layout paged, found a dense one: export with "
                    "--layout paged, or pass the prompt several times"
                )
        sequences = [
            RunningSequence(
                index,
                request,
                self._eos,
                self._tokenizer,
                started,
                prompt_logprobs=PromptLogprobs.of(request.params, request.prompt_ids),
            )
            for index, request in enumerate(requests)
        ]
        return generate_pieces(self._engine, sequences, self._max_rows, self.prefixes)
