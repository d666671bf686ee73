"""The generation loop: ragged prefill, batched decode, rows that leave and rows that take their place."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from hybridge.runtime.batch import RowBatch
from hybridge.runtime.engines.base import Engine
from hybridge.runtime.generation.prefix import PrefixStore
from hybridge.runtime.generation.results import Piece
from hybridge.runtime.generation.sequence import Sequence as RunningSequence


def generate_pieces(
    engine: Engine, sequences: Sequence[RunningSequence], max_rows: int, prefixes: PrefixStore
) -> Generator[Piece]:
    """Run all ``sequences`` to their end, at most ``max_rows`` at a time, and yield every step of each.

    A row that ends is given to the next waiting sequence at once; with none waiting the batch shrinks. The loop's
    state belongs to this iterator alone, so that it may be left at any piece and may take turns with others.
    """
    loop = _Loop(engine, sequences, max_rows, prefixes)
    try:
        while loop.busy:
            # Pieces are made before any is handed out: the caller may use the engine in between.
            yield from loop.advance()
    except GeneratorExit:
        loop.leave()
        raise


class _Loop:
    def __init__(
        self, engine: Engine, sequences: Sequence[RunningSequence], max_rows: int, prefixes: PrefixStore
    ) -> None:
        self._engine = engine
        self._waiting = deque(sequences)
        self._max_rows = max_rows
        self._prefixes = prefixes
        self._batch: RowBatch | None = None
        self._running: dict[int, RunningSequence] = {}

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def advance(self) -> list[Piece]:
        """One prefill of newcomers if there is room, otherwise one decode step."""
        if self._waiting and (not self._running or self._batch is None or self._batch.free):
            return self._admit()
        return self._decode()

    def leave(self) -> None:
        """The caller wants no more: keep what is known of the answers."""
        if self._batch is not None:
            for handle, sequence in self._running.items():
                self._keep(self._batch, handle, sequence)

    def _admit(self) -> list[Piece]:
        if not self._running:
            self._batch = None
        room = self._max_rows if self._batch is None else self._batch.free
        newcomers = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        # Newcomers are computed apart from the running rows, which would only be padding in their steps.
        group = RowBatch(self._engine, len(newcomers), max(len(s.prompt_ids) for s in newcomers))
        joined, pieces = self._prefill(group, newcomers)
        if self._batch is None:
            self._batch, self._running = group, joined
            self._compact()
        else:
            for handle, sequence in joined.items():
                self._running[self._batch.take(group, handle)] = sequence
        return pieces

    def _prefill(
        self, batch: RowBatch, newcomers: Sequence[RunningSequence]
    ) -> tuple[dict[int, RunningSequence], list[Piece]]:
        """Feed the prompts and choose the first tokens: the sequences that go on, by handle, and the pieces."""
        joined, known, tokens, readers = {}, {}, {}, {}
        for sequence in newcomers:
            # Of a cached prefix, the logits of its last token alone are known.
            prefix = None if sequence.prompt_logprobs else self._prefixes.longest(sequence.prompt_ids)
            handle = batch.join(None if prefix is None else prefix.snapshot)
            joined[handle] = sequence
            if prefix is not None:
                sequence.cached_tokens = prefix.length
                known[handle] = prefix.logits
            tokens[handle] = sequence.prompt_ids[sequence.cached_tokens :]
            if sequence.prompt_logprobs is not None:
                readers[handle] = sequence.prompt_logprobs.add
        # A prompt that is a prefix itself has nothing to feed: its logits are kept with the prefix.
        logits = {**known, **batch.feed(tokens, readers)}
        pieces = [sequence.accept(logits[handle]) for handle, sequence in joined.items()]
        return self._without_finished(batch, joined), pieces

    def _decode(self) -> list[Piece]:
        assert self._batch is not None
        running = self._running
        last_tokens = {handle: sequence.last_token for handle, sequence in running.items()}
        pieces, ended = [], False
        for handle, logits in self._batch.decode(last_tokens):
            sequence = running[handle]
            pieces.append(sequence.accept(logits))
            ended = ended or sequence.finished
        if ended:
            self._running = self._without_finished(self._batch, running)
            self._compact()
        return pieces

    def _compact(self) -> None:
        """Leave no gaps when nobody waits for the free rows, and shrink the batch when they are at least a quarter.

        Moving all rows costs about one step, so that a quarter keeps all moves together below the steps they save.
        A gap costs more where an engine runs the rows on either side of it one after the other.
        """
        batch = self._batch
        if batch is None or not self._running or self._waiting:
            return
        if 4 * batch.free >= batch.rows:
            batch.compact()
        else:
            batch.close_gaps()

    def _keep(self, batch: RowBatch, handle: int, sequence: RunningSequence) -> None:
        if self._prefixes.keeps_answers:
            self._prefixes.keep_answer(sequence.all_ids[: batch.length(handle)], batch.capture(handle))

    def _without_finished(self, batch: RowBatch, sequences: dict[int, RunningSequence]) -> dict[int, RunningSequence]:
        for handle, sequence in sequences.items():
            if sequence.finished:
                self._keep(batch, handle, sequence)
                batch.finish(handle)
        return {handle: sequence for handle, sequence in sequences.items() if not sequence.finished}
