"""Where the hidden states of sequences lie between the step that computed them and their use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hybridge.runtime.engines.hidden_rows import HiddenRows


@dataclass(eq=False)
class HiddenStates:
    """Of the positions of one sequence from ``begin`` on, without a gap: the place and the token of each.

    certain: tokens before this position are the sequence's own, not guesses.
    """

    begin: int = 0
    certain: int = 0
    places: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.places)

    def has(self, begin: int, end: int) -> bool:
        """Whether those of the positions from ``begin`` to before ``end`` are there."""
        return self.begin <= begin and end <= self.end

    def get(self, begin: int, end: int) -> list[int]:
        """The places of the positions from ``begin`` to before ``end``, which are there."""
        return self.places[begin - self.begin : end - self.begin]


class HiddenPlaces:
    """The hidden states of all sequences: those of the last step where the engine has left them, others kept.

    Of ``rows``, the places from ``begin`` to ``rows.kept`` are for those.
    """

    def __init__(self, rows: HiddenRows, begin: int) -> None:
        self._rows, self._free = rows, list(range(begin, rows.kept + 1))
        self._known: dict[int, HiddenStates] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._known))

    def of(self, sequence: int) -> HiddenStates | None:
        """What there is of a sequence."""
        return self._known.get(sequence)

    def put(self, sequence: int, start: int, tokens: Sequence[int], place: int, guesses: int) -> None:
        """The last step computed ``tokens`` of the positions from ``start`` on, the first of them at ``place``.

        The last ``guesses`` may not be the sequence's own. What came again replaces what was there; behind a gap
        nothing of that is of use.
        """
        self.cut(sequence, start)
        states = self._known.setdefault(sequence, HiddenStates(start, start))
        if not states.places or states.end < start:
            self.drop(sequence, states.end)
            states.begin = start
        states.places += range(place, place + len(tokens))
        states.tokens += tokens
        states.certain = start + len(tokens) - guesses

    def cut(self, sequence: int, position: int) -> None:
        """Forget those from ``position`` on."""
        states = self._known.get(sequence)
        if states is not None and position < states.end:
            kept = max(0, position - states.begin)
            self._give_back(states.places[kept:])
            del states.places[kept:], states.tokens[kept:]
            states.certain = min(states.certain, position)

    def drop(self, sequence: int, position: int) -> None:
        """Forget those before ``position``, at most all."""
        states = self._known.get(sequence)
        if states is not None and position > states.begin:
            count = min(position - states.begin, len(states.places))
            self._give_back(states.places[:count])
            del states.places[:count], states.tokens[:count]
            states.begin += count

    def forget(self, sequence: int) -> None:
        """The sequence has ended; one that is not known is none to forget."""
        states = self._known.pop(sequence, None)
        if states is not None:
            self._give_back(states.places)

    def fork(self, parent: int, child: int) -> None:
        """Let ``child`` have what the last step computed of ``parent``."""
        states = self._known.get(parent)
        if states is not None:
            kept = next((i for i, place in enumerate(states.places) if place >= self._rows.first), len(states.places))
            self._known[child] = HiddenStates(
                states.begin + kept, states.certain, states.places[kept:], states.tokens[kept:]
            )

    def keep(self) -> None:
        """Copy what is left of the last step to where it outlives the next; what finds no room there is forgotten."""
        moved: dict[int, int] = {}
        for sequence, states in tuple(self._known.items()):
            of_step = [index for index, place in enumerate(states.places) if place >= self._rows.first]
            if len(of_step) > len(self._free):
                self.drop(sequence, states.end)
                continue
            for index in of_step:
                # Forks have places in common, and each needs one of its own.
                target = self._free.pop()
                moved[target] = states.places[index]
                states.places[index] = target
        if moved:
            self._copy(moved)

    def _copy(self, moved: Mapping[int, int]) -> None:
        self._rows.copy(list(moved.values()), list(moved))

    def _give_back(self, places: Sequence[int]) -> None:
        self._free += [place for place in places if place < self._rows.first]
