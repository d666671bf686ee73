"""A dense engine as a paged one: a block holds a whole sequence, and takes memory only as it is filled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense import Decoder, DenseEngine
from hybridge.runtime.engines.dense_as_paged.batch_rows import BatchRows, RowRequest
from hybridge.runtime.engines.dense_as_paged.contents import Content, Contents
from hybridge.runtime.engines.dense_as_paged.host_copy import (
    ContentCopy,
    copy_from_pool_arrays,
    pool_arrays,
    pool_specs,
)
from hybridge.runtime.engines.dense_as_paged.prompts import STEP_TOKENS, Prompt, feed
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.step_limits import StepLimits
from hybridge.runtime.engines.step_result import OrderedResult, RowsResult, StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling

# Steps of the same rows after which it pays to move them together.
_STEADY_STEPS = 4


@dataclass
class _Decoding:
    """Rows that decode together: their blocks and slots in the order of the step, and what decodes them.

    contents: a step changes their lengths. capacity: tokens that each row has room for. order: position in the step of
    each row of the decoder, None where both orders are the same. noted: positions that the rows were told to have
    written. inputs: of the last step, None where it had other rows too; ids and lengths are views of it.
    """

    blocks: list[int]
    slots: list[int]
    rows: list[int]
    decoder: Decoder
    contents: list[Content]
    capacity: int
    order: list[int] | None
    steps: int = 0
    noted: int = 0
    inputs: PackedInputs | None = None
    ids: memoryview = field(default_factory=lambda: memoryview(b""))
    lengths: memoryview = field(default_factory=lambda: memoryview(b""))

    def follow(self, inputs: PackedInputs) -> None:
        """The next step may pass ``inputs`` again."""
        self.inputs, self.ids, self.lengths = inputs, inputs.input_ids.data, inputs.seq_lens.data


class DenseAsPaged(PagedEngine):
    """``dense`` behind the interface of paged engines; closes it.

    Blocks have max_seq_len tokens. A step runs prompts in separate steps of the dense engine, then all rows with one
    token in one step of its decoder.
    """

    def __init__(self, dense: DenseEngine) -> None:
        self.dense = dense
        self.name = dense.name  # type: ignore[misc]  # of other engines, all of a class have one name
        self.notes = dense.notes
        # The built engine may have lower limits than the artifact.
        self.config = replace(dense.config, max_seq_len=dense.max_seq_len, max_batch_size=dense.max_batch_size)
        self._limit = dense.max_seq_len
        self._has_kv = bool(self.config.kv_layers)
        self._has_states = any(not spec.grows for spec in dense.state_specs)
        self._sizes = PoolSizes(0, dense.max_seq_len, 0)
        self._decoding: _Decoding | None = None
        self.allocate_pools(self._sizes)

    def block_size(self, preferred: int) -> int:
        return self.dense.max_seq_len

    @property
    def pools_grow(self) -> bool:
        return True

    @property
    def no_rollback(self) -> str:
        return "the recurrent states of dense artifacts cannot be rolled back: export with `layout='paged'`"

    @property
    def pool_specs(self) -> tuple[Binding, ...]:
        # In the artifact's types, not the engine's: sessions can move from one engine to another.
        return pool_specs(self.config.bindings.states)

    @property
    def limits(self) -> StepLimits:
        rows = self.dense.max_batch_size
        return StepLimits(max(STEP_TOKENS, rows), rows)

    @property
    def slot_bytes(self) -> int:
        return sum(spec.unit_bytes for spec in self.dense.state_specs if not spec.grows)

    def block_bytes(self, block_size: int) -> int:
        return block_size * sum(spec.unit_bytes for spec in self.dense.state_specs if spec.grows)

    def kv_bytes(self, blocks: Collection[int], block_size: int) -> int:
        contents = (self._blocks.get(block) for block in blocks)
        return self.block_bytes(1) * sum(content.length for content in contents if content is not None)

    def allocate_pools(self, sizes: PoolSizes) -> None:
        if sizes.block_size != self.dense.max_seq_len:
            raise EngineError(
                f"expected blocks of {self.dense.max_seq_len} tokens, a whole sequence of a dense artifact, found "
                f"{sizes.block_size}: leave block_size out"
            )
        if sizes.num_packed:
            raise self._packs_nothing()
        self._sizes, self._decoding = sizes, None
        self._blocks, self._slots = Contents(sizes.num_blocks), Contents(sizes.num_slots)
        self._rows = BatchRows(self.dense, self._blocks, self._slots)

    def watch_usage(self, block_in_use: Callable[[int], bool], slot_in_use: Callable[[int], bool]) -> None:
        self._blocks.in_use, self._slots.in_use = block_in_use, slot_in_use

    def step(self, inputs: PackedInputs) -> np.ndarray:
        result = self.launch(inputs)
        requested = len(inputs.logits_indices)
        if not requested:
            return np.zeros((0, self.config.vocab_size), np.float32)
        return result.rows(range(requested))

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        decoding = self._decoding
        if decoding is not None and decoding.inputs is inputs:
            return self._decode(decoding, decoding.ids.tolist(), decoding.lengths.tolist(), samplings)
        blocks, slots = inputs.block_table[:, 0].tolist(), inputs.state_indices.tolist()
        lengths = inputs.seq_lens.tolist()
        if (
            decoding is not None
            and decoding.blocks == blocks
            and decoding.slots == slots
            and len(inputs.input_ids) == len(lengths) == len(inputs.logits_indices)
            and min(lengths) > 1
        ):
            decoding.follow(inputs)
            return self._decode(decoding, inputs.input_ids.tolist(), lengths, samplings)
        self._decoding = None
        check_packed(inputs, self.limits, self.config, self._sizes)
        return self._launch(inputs, blocks, slots, lengths, samplings)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._decoding = None
        for source, target in zip(sources, targets, strict=True):
            self._blocks.share(source, target)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._decoding = None
        for source, target in zip(sources, targets, strict=True):
            self._slots.share(source, target)

    def zero_slots(self, slots: Sequence[int]) -> None:
        self._decoding = None
        for slot in slots:
            self._slots.clear(slot)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        kv = [self._rows.read(True, block) for block in blocks]
        return ContentCopy(kv, [self._rows.read(False, slot)[0] for slot in slots])

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        assert isinstance(copy, ContentCopy) and (copy.blocks, copy.slots) == (len(blocks), len(slots))
        self._decoding = None
        for block, (arrays, length) in zip(blocks, copy.kv, strict=True):
            self._blocks.put(block, arrays, length)
        for slot, arrays in zip(slots, copy.states, strict=True):
            if arrays:
                self._slots.put(slot, arrays, 0)
            else:
                self._slots.clear(slot)

    def arrays_from_copy(self, copy: HostCopy) -> dict[str, np.ndarray]:
        assert isinstance(copy, ContentCopy)
        return pool_arrays(self.dense.state_specs, copy)

    def copy_from_arrays(self, arrays: Mapping[str, np.ndarray], blocks: int, slots: int) -> HostCopy:
        return copy_from_pool_arrays(self.dense.state_specs, arrays, blocks, slots)

    def close(self) -> None:
        self._rows.free()
        self._decoding = None
        self.dense.close()

    def _launch(
        self,
        inputs: PackedInputs,
        blocks: list[int],
        slots: list[int],
        lengths: list[int],
        samplings: Mapping[int, TokenSampling],
    ) -> StepResult:
        """Any step; rows of one token whose logits are requested decode, all others are prompts."""
        ids, bounds = inputs.input_ids, inputs.query_start_loc.tolist()
        requested = _requested(inputs.logits_indices.tolist(), bounds)
        counts = [bounds[row + 1] - bounds[row] for row in range(len(lengths))]
        positions = self._place(blocks, slots, lengths, counts)
        prompts = {
            row: Prompt(place, ids[bounds[row] : bounds[row + 1]], lengths[row] - counts[row], requested[row])
            for row, place in positions.items()
            if counts[row] > 1 or len(requested[row]) != 1
        }
        self._feed(list(prompts.values()))
        decodes = [row for row in positions if row not in prompts]
        found: list[list[np.ndarray]] = [
            [np.zeros(self.config.vocab_size, np.float32)] * len(each) for each in requested
        ]
        for row, prompt in prompts.items():
            found[row] = prompt.logits
        if decodes:
            decoding = self._decoder(
                [blocks[row] for row in decodes], [slots[row] for row in decodes], [positions[row] for row in decodes]
            )
            tokens = [int(ids[bounds[row]]) for row in decodes]
            if len(decodes) == len(lengths):
                self._decoding = decoding
                decoding.follow(inputs)
                return _decoded(decoding, tokens, lengths, samplings)
            result = _decoded(decoding, tokens, [lengths[row] for row in decodes], NO_SAMPLING)
            for index, row in enumerate(decodes):
                found[row] = [result.logits(index)]
        return RowsResult([logits for each in found for logits in each])

    def _place(self, blocks: list[int], slots: list[int], lengths: list[int], counts: list[int]) -> dict[int, int]:
        """The batch row of each row that has tokens, of which ``counts`` are new."""
        rows = [row for row, length in enumerate(lengths) if length]
        if not rows:
            return {}
        requests = [
            RowRequest(
                blocks[row] if self._has_kv else -1,
                slots[row] if self._has_states else -1,
                lengths[row] - counts[row],
            )
            for row in rows
        ]
        positions = self._rows.place(requests, max(lengths[row] for row in rows))
        for row in rows:
            self._set_length(blocks[row], lengths[row])
        return dict(zip(rows, positions, strict=True))

    def _feed(self, prompts: list[Prompt]) -> None:
        """Feed prompts in steps without the decoding rows, which would only be padding there."""
        if not prompts:
            return
        states = self._rows.states
        if len(prompts) == states.batch:
            feed(self.dense, states, prompts)
            return
        apart = self.dense.allocate_states(len(prompts), states.max_seq)
        homes = [prompt.row for prompt in prompts]
        for row, prompt in enumerate(prompts):
            prompt.row = row
            if prompt.past:
                for name, buffer in states.buffers.items():
                    apart.buffers[name].take_row(row, buffer, homes[row], prompt.past)
        feed(self.dense, apart, prompts)
        for row, prompt in enumerate(prompts):
            for name, buffer in apart.buffers.items():
                states.buffers[name].take_row(homes[row], buffer, row, prompt.past + prompt.ids.size)

    def _decode(
        self, decoding: _Decoding, tokens: list[int], lengths: list[int], samplings: Mapping[int, TokenSampling]
    ) -> StepResult:
        """A step of the same rows as the one before."""
        decoding.steps += 1
        longest = max(lengths)
        if longest > self._limit or min(tokens) < 0:
            raise EngineError(f"expected rows of at most {self._limit} tokens, found one of {longest}")
        if decoding.steps == _STEADY_STEPS and self._rows.close_gaps(decoding.rows):
            rows, inputs = [content.row for content in decoding.contents], decoding.inputs
            decoding = self._decoding = self._decoder(decoding.blocks, decoding.slots, rows)
            decoding.steps = _STEADY_STEPS
            if inputs is not None:
                decoding.follow(inputs)
        if longest > decoding.capacity:
            self._rows.reserve(longest)
            decoding.capacity = self._rows.states.max_seq
        if longest > decoding.noted:
            decoding.noted = longest + _STEADY_STEPS
            self._rows.note_written(decoding.rows, decoding.noted)
        for content, length in zip(decoding.contents, lengths, strict=True):
            content.length = length
        return _decoded(decoding, tokens, lengths, samplings)

    def _decoder(self, blocks: list[int], slots: list[int], rows: list[int]) -> _Decoding:
        order = sorted(range(len(rows)), key=rows.__getitem__)
        decoder = self.dense.decoder([rows[place] for place in order], self._rows.states)
        contents = self._blocks if self._has_kv else self._slots
        present = [contents.get(id_) for id_ in (blocks if self._has_kv else slots)]
        permutation = None if order == list(range(len(rows))) else order
        capacity = self._rows.states.max_seq
        return _Decoding(blocks, slots, rows, decoder, [each for each in present if each], capacity, permutation)

    def _set_length(self, block: int, length: int) -> None:
        content = self._blocks.get(block) if self._has_kv else None
        if content is not None:
            content.length = length


def _requested(indices: Sequence[int], bounds: Sequence[int]) -> list[list[int]]:
    """For each row, the tokens whose logits are needed, counted from its first token."""
    found: list[list[int]] = [[] for _ in bounds[1:]]
    row = 0
    for index in indices:
        while index >= bounds[row + 1]:
            row += 1
        found[row].append(index - bounds[row])
    return found


def _decoded(
    decoding: _Decoding, tokens: list[int], lengths: list[int], samplings: Mapping[int, TokenSampling]
) -> StepResult:
    """One token for each row; the result is that of the rows in the order of the step."""
    past, order = [length - 1 for length in lengths], decoding.order
    if order is None:
        return decoding.decoder.launch(tokens, past, samplings)
    index = {row: place for place, row in enumerate(order)}
    by_place = {index[row]: how for row, how in samplings.items()}
    found = decoding.decoder.launch([tokens[row] for row in order], [past[row] for row in order], by_place)
    return OrderedResult(found, [index[row] for row in range(len(order))])
