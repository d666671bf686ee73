"""Hidden states of sequences, stored between the step that computed them and their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hybridge.runtime.engines.hidden_rows import HiddenRows


@dataclass(eq=False)
class HiddenStates:
    """The index in the hidden rows, and the token, of each position of a sequence from ``begin`` on, without gaps.

    certain: tokens before this position belong to the sequence; later ones are draft tokens.
    """

    begin: int = 0
    certain: int = 0
    indices: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.indices)

    def has(self, begin: int, end: int) -> bool:
        """Whether all positions in [begin, end) are present."""
        return self.begin <= begin and end <= self.end

    def get(self, begin: int, end: int) -> list[int]:
        """The indices of the positions in [begin, end), which are present."""
        return self.indices[begin - self.begin : end - self.begin]


class HiddenStateCache:
    """The hidden states of all sequences: those of the last step where the engine wrote them, older ones copied.

    The copies use ``rows`` from ``begin`` to ``rows.kept``.
    """

    def __init__(self, rows: HiddenRows, begin: int) -> None:
        self._rows, self._begin = rows, begin
        self.forget_all()

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._known))

    def of(self, sequence: int) -> HiddenStates | None:
        """The hidden states of a sequence; None if it has none."""
        return self._known.get(sequence)

    def put(self, sequence: int, start: int, tokens: Sequence[int], place: int, draft_tokens: int) -> None:
        """Add ``tokens`` that the last step computed, from position ``start`` on, the first of them at index ``place``.

        The last ``draft_tokens`` may be rejected. Positions computed again replace the old ones; positions before a gap
        are dropped.
        """
        self.cut(sequence, start)
        states = self._known.setdefault(sequence, HiddenStates(start, start))
        if not states.indices or states.end < start:
            self.drop(sequence, states.end)
            states.begin = start
        states.indices += range(place, place + len(tokens))
        states.tokens += tokens
        states.certain = start + len(tokens) - draft_tokens

    def cut(self, sequence: int, position: int) -> None:
        """Forget the positions from ``position`` on."""
        states = self._known.get(sequence)
        if states is not None and position < states.end:
            remaining = max(0, position - states.begin)
            self._release(states.indices[remaining:])
            del states.indices[remaining:], states.tokens[remaining:]
            states.certain = min(states.certain, position)

    def drop(self, sequence: int, position: int) -> None:
        """Forget the positions before ``position``."""
        states = self._known.get(sequence)
        if states is not None and position > states.begin:
            count = min(position - states.begin, len(states.indices))
            self._release(states.indices[:count])
            del states.indices[:count], states.tokens[:count]
            states.begin += count

    def forget(self, sequence: int) -> None:
        """Forget an ended sequence; unknown ids are ignored."""
        states = self._known.pop(sequence, None)
        if states is not None:
            self._release(states.indices)

    def forget_all(self) -> None:
        """Forget all sequences."""
        self._free = list(range(self._begin, self._rows.reserved + 1))
        self._known: dict[int, HiddenStates] = {}

    def fork(self, parent: int, child: int) -> None:
        """Give ``child`` the hidden states that the last step computed for ``parent``."""
        states = self._known.get(parent)
        if states is not None:
            first = next(
                (i for i, place in enumerate(states.indices) if place >= self._rows.first), len(states.indices)
            )
            self._known[child] = HiddenStates(
                states.begin + first, states.certain, states.indices[first:], states.tokens[first:]
            )

    def keep(self) -> None:
        """Copy the remaining states of the last step so that they survive the next; without room they are forgotten."""
        moved: dict[int, int] = {}
        for sequence, states in tuple(self._known.items()):
            of_step = [index for index, place in enumerate(states.indices) if place >= self._rows.first]
            if len(of_step) > len(self._free):
                self.drop(sequence, states.end)
                continue
            for index in of_step:
                # Forks share indices, and each needs its own.
                target = self._free.pop()
                moved[target] = states.indices[index]
                states.indices[index] = target
        if moved:
            self._copy(moved)

    def _copy(self, moved: Mapping[int, int]) -> None:
        self._rows.copy(list(moved.values()), list(moved))

    def _release(self, indices: Sequence[int]) -> None:
        self._free += [place for place in indices if place < self._rows.first]
