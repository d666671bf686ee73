"""Sequences in the pools of a paged engine, in blocks of random order; free blocks and slots hold NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES, e4m3_from_floats, filled_with, floats_from_e4m3
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.verification.long_windows import FILLED, FilledCaches
from hybridge.verification.observation import InnerValues, Observation


@dataclass
class _Sequence:
    """A slot, blocks in the order of positions, and how many tokens have been fed and accepted.

    shown: inner values [tokens, hidden] of the tokens that it was fed. parts: the tokens of each step.
    """

    slot: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    shown: list[np.ndarray] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)


class PagedSequences:
    """Feeds tokens of several sequences to a paged engine, any number of each in one step.

    ``tokens``: the most that all sequences together will have. ``slots``: the slots of the sequences in their order,
    from 0 to ``count``; in random order by default. ``inner``: the inner values to show, if any.
    """

    def __init__(
        self,
        engine: PagedEngine,
        count: int,
        tokens: int,
        block_size: int,
        seed: int = 0,
        slots: Sequence[int] | None = None,
        inner: InnerValues | None = None,
    ) -> None:
        self._engine, self._size, self._inner = engine, block_size, inner
        sizes = PoolSizes(-(-tokens // block_size) + count + 1, block_size, count + 1)
        engine.allocate_pools(sizes)
        engine.fill_pools(np.nan)
        rng = np.random.default_rng(seed)
        self._free_blocks = rng.permutation(sizes.num_blocks).tolist()
        self._free_slots = rng.permutation(sizes.num_slots).tolist() if slots is None else list(reversed(slots))
        self._sequences: list[_Sequence] = []

    def add(self) -> int:
        """A new, empty sequence; its handle."""
        self._sequences.append(_Sequence(self._free_slots.pop()))
        self._engine.zero_slots([self._sequences[-1].slot])
        return len(self._sequences) - 1

    def add_filled(self, caches: FilledCaches) -> int:
        """Add a sequence with ``caches``; returns its handle. One block of zeros serves all but the last."""
        handle, size = self.add(), self._size
        sequence = self._sequences[handle]
        head = -(-FILLED // size)
        zeros, last = self._free_blocks.pop(), self._free_blocks.pop()
        sequence.blocks = [self._free_blocks.pop() for _ in range(head)]
        self._write([*sequence.blocks, zeros, last], caches)
        sequence.blocks += [zeros] * (caches.length // size - head) + [last]
        sequence.length = caches.length
        return handle

    def step(self, work: Mapping[int, np.ndarray], padding_rows: int = 0) -> dict[int, np.ndarray]:
        """Feed tokens [n] to each sequence of ``work``, in its order; logits [n, vocab] of all these tokens.

        padding_rows: the step ends with this many padding rows.
        """
        return self._run(work, self._inputs(work, padding_rows), {})

    def check(self, work: Mapping[int, np.ndarray], accepted: Mapping[int, int]) -> dict[int, np.ndarray]:
        """Feed draft tokens [n] to each sequence of ``work``, of which the first ``accepted`` become part of it.

        Returns logits [n, vocab] of all these tokens.
        """
        logits = self._run(work, replace(self._inputs(work, 0), deferred=np.ones(len(work), bool)), accepted)
        self._engine.advance(np.array([accepted[handle] for handle in work], np.int32))
        for handle, count in accepted.items():
            self._sequences[handle].length += count - len(work[handle])
            self._sequences[handle].parts[-1] = count
        return logits

    def stop_recording(self) -> None:
        """Stop recording hidden states, and drop those recorded so far."""
        self._inner = None
        for sequence in self._sequences:
            sequence.shown = []

    def observed(
        self,
        scenario: str,
        prompt: int,
        handle: int,
        logits: np.ndarray,
        states: dict[str, np.ndarray] | None = None,
        tokens: int | None = None,
    ) -> Observation:
        """The observation of a sequence; ``states``: instead of all of its states.

        tokens: after the first so many; None after all.
        """
        sequence = self._sequences[handle]
        behind = 0 if tokens is None else sequence.length - tokens
        shown = [value[: len(value) - behind] for value in sequence.shown]
        own = self.states(handle) if states is None else states
        fields = {} if self._inner is None else self._inner.fields(shown)
        parts = (*sequence.parts[:-1], sequence.parts[-1] - behind)
        return Observation(scenario, prompt, sequence.length - behind, logits, own, parts=parts, **fields)

    def states(self, handle: int, tokens: int | None = None) -> dict[str, np.ndarray]:
        """States of one sequence by the names of the dense layout, KV caches [kv_heads, tokens, head_dim].

        tokens: only the last so many; None for all.
        """
        sequence, config = self._sequences[handle], self._engine.config
        positions = np.arange(sequence.length)[-(tokens or sequence.length) :]
        blocks = np.array(sequence.blocks, np.int64)[positions // self._size]
        found: dict[str, np.ndarray] = {}
        for k, kv in enumerate(config.kv_layers):
            pool = self._engine.read_pool(names.kv_pool(k))
            if config.has_kv_scales:
                scales = self._engine.read_pool(names.kv_scales(k)).swapaxes(2, 3)
                pool = floats_from_e4m3(pool) * scales[..., None]
            for index, name in enumerate(kv.state_names(k)):
                found[name] = pool[index, blocks, positions % self._size].swapaxes(0, 1).copy()
        for r, layer in enumerate(config.recurrent_layers):
            for name in layer.state_names(r):
                found[name] = self._engine.read_pool(name)[sequence.slot].copy()
        for own in config.state_scales:
            found[own.name] = own.exact(found[own.name], self._engine.read_pool(own.scales)[sequence.slot])
        for ring in config.state_rings:
            own_ring = {name: self._engine.read_pool(name)[sequence.slot] for name in ring.names}
            found[ring.state] = ring.flushed(found[ring.state], own_ring)
        return found

    def untouched(self) -> bool:
        """Whether all free blocks and slots still hold NaN."""
        for name, spec in ((b.name, b) for b in self._engine.config.bindings.states):
            view = self._engine.read_pool(name)
            free = view[:, self._free_blocks] if spec.grows else view[self._free_slots]
            if spec.dtype is E4M3_BYTES:
                free = floats_from_e4m3(free)
            elif spec.dtype in (DType.INT8, DType.INT32):
                free = np.where(free == filled_with(np.nan, spec.dtype), np.nan, 0.0)
            if not np.isnan(free).all():
                return False
        return True

    def _write(self, blocks: list[int], caches: FilledCaches) -> None:
        """Write the first tokens of ``caches`` to the first of ``blocks``, and zeros after them."""
        config, arrays = self._engine.config, {}
        for spec in config.bindings.states:
            if not spec.grows:
                arrays[spec.name] = np.zeros(spec.resolve(num_slots=0), spec.dtype.numpy)
        for k, layer in enumerate(config.kv_layers):
            own = layer.state_names(k)
            numbers = np.zeros((len(own), len(blocks) * self._size, layer.num_kv_heads, layer.head_dim), np.float32)
            for index, name in enumerate(own):
                numbers[index, :FILLED] = caches.first(name).swapaxes(0, 1)
            paged = numbers.reshape(len(own), len(blocks), self._size, *numbers.shape[2:])
            if config.has_kv_scales:
                factors = np.array([caches.factor(name) for name in own], np.float32)
                paged = e4m3_from_floats(paged / factors[:, None, None, None, None])
                shape = (len(own), len(blocks), layer.num_kv_heads, self._size)
                scales = np.broadcast_to(factors[:, None, None, None], shape)
                arrays[names.kv_scales(k)] = scales
            arrays[names.kv_pool(k)] = paged
        copy = self._engine.copy_from_arrays(arrays, len(blocks), 0)
        self._engine.swap_in(copy, blocks, [])

    def _run(
        self, work: Mapping[int, np.ndarray], inputs: PackedInputs, accepted: Mapping[int, int]
    ) -> dict[int, np.ndarray]:
        """One step; logits [n, vocab] of the tokens of each sequence of ``work``.

        accepted: of which sequence the inner values of how many tokens are stored; of the others those of all.
        """
        ends = np.cumsum([len(tokens) for tokens in work.values()])
        if self._inner is None:
            logits = self._engine.step(inputs).copy()
        else:
            found = self._engine.step_values(inputs, self._inner.names)
            logits = found[names.LOGITS].copy()
            for handle, end in zip(work, ends, strict=True):
                sequence, start = self._sequences[handle], end - len(work[handle])
                stop = start + accepted.get(handle, len(work[handle]))
                new = [found[name][start:stop] for name in self._inner.names]
                before = sequence.shown or [value[:0] for value in new]
                sequence.shown = [np.concatenate(pair) for pair in zip(before, new, strict=True)]
        return dict(zip(work, np.split(logits, ends)[:-1], strict=True))

    def _inputs(self, work: Mapping[int, np.ndarray], padding_rows: int) -> PackedInputs:
        sequences = [self._sequences[handle] for handle in work]
        counts = [len(tokens) for tokens in work.values()] + [1] * padding_rows
        positions = [np.arange(s.length, s.length + n) for s, n in zip(sequences, counts, strict=False)]
        slots = [self._reserve(sequence, own) for sequence, own in zip(sequences, positions, strict=True)]
        table = np.full((len(counts), max([1, *(len(s.blocks) for s in sequences)])), -1, np.int32)
        for row, sequence in enumerate(sequences):
            table[row, : len(sequence.blocks)] = sequence.blocks
            sequence.length += counts[row]
            sequence.parts.append(counts[row])
        padding = np.zeros(padding_rows, np.int64)
        return PackedInputs(
            input_ids=np.concatenate([*work.values(), padding]).astype(np.int64),
            positions=np.concatenate([*positions, padding]).astype(np.int64),
            query_start_loc=np.array([0, *np.cumsum(counts)], np.int32),
            seq_lens=np.array([*(s.length for s in sequences), *padding], np.int32),
            block_table=table,
            slot_mapping=np.concatenate([*slots, padding - 1]).astype(np.int32),
            state_indices=np.array([*(s.slot for s in sequences), *(padding - 1)], np.int32),
            logits_indices=np.arange(sum(counts), dtype=np.int32),
        )

    def _reserve(self, sequence: _Sequence, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """The places of ``positions``, with new blocks where they begin."""
        while len(sequence.blocks) * self._size <= positions[-1]:
            sequence.blocks.append(self._free_blocks.pop())
        return np.array([sequence.blocks[p // self._size] * self._size + p % self._size for p in positions])
