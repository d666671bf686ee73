"""The batch rows of a dense engine, lent to the blocks and slots that a step works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridge.artifact.bindings import MAX_SEQ
from hybridge.runtime.engines.capacity import capacity_for
from hybridge.runtime.engines.dense import DenseEngine, StateSet
from hybridge.runtime.engines.dense_as_paged.contents import Arrays, Content, Contents

# KV caches start with room for this many tokens and double when they are full: a decode step then costs what the


@dataclass(frozen=True)
class RowRequest:
    """Work on ``block`` and ``slot`` (-1: the model has none) of a sequence with ``past`` tokens."""

    block: int
    slot: int
    past: int


@dataclass
class _Part:
    """KV caches, or recurrent states: whose content each row has."""

    contents: Contents
    names: tuple[str, ...]
    is_kv: bool
    occupants: list[Content | None] = field(default_factory=list)


class BatchRows:
    """A state set that grows with the rows of a step.

    A row has the KV of one block and the recurrent states of one slot. What a step does not work on stays in its row
    until the row is needed, and is then parked in host memory, cut to its length.
    """

    def __init__(self, engine: DenseEngine, blocks: Contents, slots: Contents) -> None:
        self._engine = engine
        specs = engine.state_specs
        self._parts = (
            _Part(blocks, tuple(spec.name for spec in specs if spec.grows), True),
            _Part(slots, tuple(spec.name for spec in specs if not spec.grows), False),
        )
        # The token axis of one row's KV.
        self._token_axes = {spec.name: spec.shape.index(MAX_SEQ) - 1 for spec in specs if spec.grows}
        self._states: StateSet | None = None
        self._clock = 0
        self._used: list[int] = []
        # How many positions of each row's KV may have been written since they were zero.
        self._written: list[int] = []

    @property
    def states(self) -> StateSet:
        """The states of all rows; there are some after ``place``."""
        assert self._states is not None, "no sequence has a batch row yet"
        return self._states

    @property
    def count(self) -> int:
        """Number of rows."""
        return 0 if self._states is None else self._states.batch

    def place(self, requested: Sequence[RowRequest], longest: int) -> list[int]:
        """Rows with exactly the contents ``requested``, ready to be written, with room for ``longest`` tokens."""
        self._grow(len(requested), longest)
        rows = [self._row_of(each) for each in requested]
        taken = {row for row in rows if row >= 0}
        moving = [place for place, row in enumerate(rows) if row < 0]
        for place in moving:
            rows[place] = self._choose(requested[place], taken)
            taken.add(rows[place])
        # Copies first: once a content has been copied to its only other user, it need not be saved.
        for stays in (False, True):
            for place in moving:
                for part, id_ in self._ids(requested[place]):
                    content = part.contents.get(id_)
                    if (content is not None and content.row == rows[place]) == stays:
                        self._load(part, id_, rows[place], requested[place].past)
        self._clock += 1
        for row, each in zip(rows, requested, strict=True):
            self._used[row] = self._clock
            if not each.past:
                self._clean(row)
        self.note_written(rows, longest)
        return rows

    def note_written(self, rows: Sequence[int], tokens: int) -> None:
        """Steps write up to the first ``tokens`` positions of ``rows``."""
        for row in rows:
            self._written[row] = max(self._written[row], tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in every row."""
        if tokens > self.states.max_seq:
            self.states.reserve(max(tokens, capacity_for(tokens, self._engine.max_seq_len)))

    def close_gaps(self, rows: Sequence[int]) -> bool:
        """Move ``rows`` together, or drop all other rows if these are at least a quarter; True if anything moved.

        Moving all rows costs about one step, which engines that compute idle rows too soon regain. A gap costs more if
        an engine runs the rows on either side of it one after another.
        """
        if 4 * len(rows) <= 3 * self.count:
            self._resize(sorted(rows), len(rows), 1)
            return True
        moved = False
        for row in sorted(rows, reverse=True):
            gap = min(set(range(row)) - set(rows), default=row)
            if gap == row:
                break
            self._move(row, gap)
            rows = [gap if each == row else each for each in rows]
            moved = True
        return moved

    def read(self, is_kv: bool, id_: int) -> tuple[Arrays, int]:
        """The content of a block or slot, as arrays that do not change, and the tokens of a block."""
        part = self._parts[0 if is_kv else 1]
        content = part.contents.get(id_)
        if content is None:
            return {}, 0
        return (content.arrays if content.row < 0 else self._arrays(part, content)), content.length

    def free(self) -> None:
        """Give up all rows."""
        self._states, self._used, self._written = None, [], []

    def _ids(self, requested: RowRequest) -> list[tuple[_Part, int]]:
        pairs = zip(self._parts, (requested.block, requested.slot), strict=True)
        return [(part, id_) for part, id_ in pairs if id_ >= 0]

    def _row_of(self, requested: RowRequest) -> int:
        """The row that holds all of it and nothing else; -1 if there is none."""
        found = -1
        for part, id_ in self._ids(requested):
            content = part.contents.get(id_)
            if content is None or content.row < 0 or len(content.ids) > 1 or found not in (-1, content.row):
                return -1
            found = content.row
        return found

    def _choose(self, requested: RowRequest, taken: set[int]) -> int:
        """A row for ``requested``: one that has a part of it, one that is free, or the one not used for longest."""
        for part, id_ in self._ids(requested):
            content = part.contents.get(id_)
            if content is not None and content.row >= 0 and len(content.ids) == 1 and content.row not in taken:
                return content.row
        others = [row for row in range(self.count) if row not in taken]
        return min(others, key=lambda row: (self._is_needed(row), self._used[row], row))

    def _is_needed(self, row: int) -> bool:
        occupants = ((part, part.occupants[row]) for part in self._parts)
        return any(each is not None and part.contents.needed(each) for part, each in occupants)

    def _load(self, part: _Part, id_: int, row: int, past: int) -> None:
        """Give ``row`` the contents of ``id_`` only."""
        content, occupant = part.contents.get(id_), part.occupants[row]
        if content is not None and content is occupant:
            self._detach_others(part, id_, content, row)
            return
        self._vacate(part, row)
        buffers = self.states.buffers
        if content is None or (part.is_kv and not past):
            if not part.is_kv:
                for name in part.names:
                    buffers[name].zero_rows([row])
        elif content.row >= 0:
            for name in part.names:
                buffers[name].copy_row(content.row, row)
            if part.is_kv:
                self._written[row] = self._written[content.row]
        else:
            if part.is_kv:
                self._clean(row)
            for name, array in content.arrays.items():
                value = array if not part.is_kv else array.take(range(past), axis=self._token_axes[name])
                if value.size:
                    buffers[name].write_row(row, value)
        own = part.contents.own(id_)
        if own.row >= 0:
            part.occupants[own.row] = None
        own.length = past
        part.contents.occupy(own, row)
        part.occupants[row] = own

    def _clean(self, row: int) -> None:
        """Zero the KV of ``row``: engines may multiply hidden positions by 0, and a NaN there would stay one."""
        if self._written[row]:
            buffers = self.states.buffers
            for name in self._parts[0].names:
                buffers[name].zero_rows([row], min(self._written[row], self.states.max_seq))
            self._written[row] = 0

    def _detach_others(self, part: _Part, id_: int, content: Content, row: int) -> None:
        """``content`` stays in ``row`` for ``id_`` alone; others who hold it, and are in use, get it parked."""
        contents = part.contents
        if len(content.ids) == 1:
            return
        if not contents.needed(content, id_):
            for other in content.ids - {id_}:
                contents.clear(other)
            return
        contents.park(content, self._arrays(part, content))
        own = contents.own(id_)
        own.length = content.length
        contents.occupy(own, row)
        part.occupants[row] = own

    def _vacate(self, part: _Part, row: int) -> None:
        content = part.occupants[row]
        if content is None:
            return
        if part.contents.needed(content):
            part.contents.park(content, self._arrays(part, content))
        else:
            content.row = -1
            part.contents.drop(content)
        part.occupants[row] = None

    def _arrays(self, part: _Part, content: Content) -> Arrays:
        """Read-only copies of the content of a row."""
        buffers, arrays = self.states.buffers, {}
        for name in part.names:
            arrays[name] = buffers[name].read_row(content.row, content.length if part.is_kv else None)
            arrays[name].setflags(write=False)
        return arrays

    def _move(self, source: int, target: int) -> None:
        buffers = self.states.buffers
        for part in self._parts:
            self._vacate(part, target)
            content = part.occupants[source]
            if content is None:
                continue
            for name in part.names:
                buffers[name].copy_row(source, target)
            part.occupants[source], part.occupants[target] = None, content
            content.row = target
            if part.is_kv:
                self._written[target] = self._written[source]
        self._used[target], self._used[source] = self._used[source], 0

    def _grow(self, rows: int, longest: int) -> None:
        if self._states is None:
            capacity = capacity_for(longest, self._engine.max_seq_len)
            self._states = self._engine.allocate_states(rows, capacity)
            self._used, self._written = [0] * rows, [0] * rows
            for part in self._parts:
                part.occupants = [None] * rows
        elif rows > self.count:
            self._resize(list(range(self.count)), rows, longest)
        else:
            self.reserve(longest)

    def _resize(self, remaining: Sequence[int], count: int, longest: int) -> None:
        """A state set of ``count`` rows, whose first are ``remaining``; others are parked if they are needed."""
        old, limit = self.states, self._engine.max_seq_len
        for row in set(range(old.batch)) - set(remaining):
            for part in self._parts:
                self._vacate(part, row)
        used = [content.length for content in self._parts[0].occupants if content is not None]
        new = self._engine.allocate_states(count, capacity_for(max([longest, *used]), limit))
        source, target = old.buffers, new.buffers
        for part in self._parts:
            occupants: list[Content | None] = [None] * count
            for row, before in enumerate(remaining):
                content = occupants[row] = part.occupants[before]
                if content is None:
                    continue
                for name in part.names:
                    target[name].take_row(row, source[name], before, content.length)
                content.row = row
            part.occupants = occupants
        self._used = [self._used[row] for row in remaining] + [0] * (count - len(remaining))
        self._written = [0 if content is None else content.length for content in self._parts[0].occupants]
        self._states = new
