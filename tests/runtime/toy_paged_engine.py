"""An exact paged engine in NumPy: every logit is an integer function of all tokens that its row consumed.

KV and states are integers in float64 arrays, reached only through block tables and slots. Unowned memory can be
poisoned with NaN (``poison``), and a NaN that is read ends the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import EngineError
from hybridge.artifact.layer_config import KVLayerConfig
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.step_limits import StepLimits
from tests.runtime.toy_engine import toy_config

VOCAB = 61
_MODULUS = 9973


def paged_config(
    layers: Sequence[str],
    max_seq_len: int = 96,
    vocab: int = VOCAB,
    window: int | None = None,
    eos: tuple = (),
) -> RuntimeConfig:
    """The config of a toy model with paged layout."""
    config = toy_config(layers, max_seq_len=max_seq_len, vocab=vocab, eos=eos)
    kv = tuple(KVLayerConfig(1, 2, window) for _ in config.kv_layers)
    return replace(config, layout="paged", kv_layers=kv)


def toy_logits(config: RuntimeConfig, tokens: Sequence[int]) -> np.ndarray:
    """Logits [vocab] after ``tokens``, from scratch."""
    mix = 0
    ids = np.array(tokens, np.int64)
    if config.kv_layers:
        first = max(0, len(tokens) - (config.kv_layers[0].sliding_window or len(tokens)))
        positions = np.arange(first, len(tokens))
        mix += int(((positions + 1) * toy_kv(ids[first:], positions)).sum())
    if config.recurrent_layers:
        state, count = toy_state(tokens)
        mix += 17 * int(state) + 5 * int(count)
    return _logits(mix, config.vocab_size)


def toy_greedy(config: RuntimeConfig, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy continuation of ``prompt`` alone; it ends early after an EOS token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(toy_logits(config, tokens).argmax()))
        if tokens[-1] in config.eos_token_ids:
            break
    return tokens[len(prompt) :]


def toy_state(tokens: Sequence[int]) -> np.ndarray:
    """What a slot holds after ``tokens``, from scratch."""
    state = 0
    for token in tokens:
        state = (state * 31 + token * 7 + 1) % _MODULUS
    return np.array([state, len(tokens)], np.float64)


def toy_kv(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """What the places of tokens hold in a block."""
    return (ids * 13 + positions * 5) % 1009


def _logits(mix: int, vocab: int) -> np.ndarray:
    ids = np.arange(vocab, dtype=np.int64)
    return (((mix + ids * ids * 31 + ids * 7) % 1009) / 200).astype(np.float32)


class ToyCopy(HostCopy):
    """Copied rows of both pools."""

    def __init__(self, kv: np.ndarray, states: np.ndarray) -> None:
        self.kv, self.states = kv, states
        self.blocks, self.slots = len(kv), len(states)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self.states.nbytes


class ToyPagedEngine(PagedEngine):
    """``fail_at`` names steps that fail after they have spoilt what they write to; ``steps`` counts them. ``takes``:
    whether it takes checkpoints inside of rows."""

    name: ClassVar[str] = "toy-paged"

    def __init__(
        self,
        config: RuntimeConfig,
        max_tokens: int = 64,
        max_rows: int = 8,
        pad_to: int = 1,
        fail_at: Iterable[int] = (),
        max_rollback: int = 16,
    ) -> None:
        self.config = config
        self.steps = self.tokens = 0
        self.fail_at = set(fail_at)
        self.host_bytes_left: int | None = None
        self.closed = False
        self._limits = StepLimits(max_tokens, max_rows)
        self._pad_to = pad_to
        self._max_rollback = max_rollback
        # By deferred row of the last step: its slot, and the states after each of its tokens.
        self._deferred: dict[int, tuple[int, list[np.ndarray]]] = {}
        self.fail_to_advance = False
        self.takes = False

    @property
    def takes_checkpoints(self) -> bool:
        return self.takes

    @property
    def limits(self) -> StepLimits:
        return self._limits

    @property
    def slot_bytes(self) -> int:
        return 16 if self.config.recurrent_layers else 0

    def block_bytes(self, block_size: int) -> int:
        return 8 * block_size if self.config.kv_layers else 0

    @property
    def max_rollback_tokens(self) -> int:
        return self._max_rollback if self.config.recurrent_layers else 0

    @property
    def rollback_token_bytes(self) -> int:
        return 1 if self.config.recurrent_layers else 0

    def advance(self, accepted: np.ndarray) -> None:
        deferred, self._deferred = self._deferred, {}
        assert [row for row, count in enumerate(accepted) if count] == list(deferred), "rows that were deferred advance"
        for row, (slot, states) in deferred.items():
            self.states[slot] = np.nan if self.fail_to_advance else states[accepted[row] - 1]
        if self.fail_to_advance:
            raise EngineError("the toy engine was told to fail to advance")

    def padded_rows(self, rows: int) -> int:
        return -(-rows // self._pad_to) * self._pad_to

    def padded_blocks(self, blocks: int) -> int:
        return -(-blocks // self._pad_to) * self._pad_to

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self.sizes = sizes
        self.kv = np.full((sizes.num_blocks, sizes.block_size), np.nan)
        self.states = np.full((sizes.num_slots, 2), np.nan)

    def poison(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Overwrite unowned memory."""
        self.kv[list(blocks)] = np.nan
        self.states[list(slots)] = np.nan

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert not set(sources) & set(targets) and len(set(targets)) == len(targets)
        self.kv[list(targets)] = self.kv[list(sources)]

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert not set(sources) & set(targets) and len(set(targets)) == len(targets)
        self.states[list(targets)] = self.states[list(sources)]

    def zero_slots(self, slots: Sequence[int]) -> None:
        self.states[list(slots)] = 0

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        copy = ToyCopy(self.kv[list(blocks)], self.states[list(slots)])
        if self.host_bytes_left is not None:
            if copy.nbytes > self.host_bytes_left:
                raise EngineError("the toy host is full")
            self.host_bytes_left -= copy.nbytes
        return copy

    def swap_in(self, copy: HostCopy, blocks: Sequence[int], slots: Sequence[int]) -> None:
        assert isinstance(copy, ToyCopy) and (copy.blocks, copy.slots) == (len(blocks), len(slots))
        self.kv[list(blocks)] = copy.kv
        self.states[list(slots)] = copy.states

    def memory_use(self) -> Mapping[str, int]:
        return {"weights": 1000}

    def step(self, inputs: PackedInputs) -> np.ndarray:
        self._check(inputs)
        self.steps += 1
        self.tokens += inputs.input_ids.size
        requested = {int(token): m for m, token in enumerate(inputs.logits_indices)}
        logits = np.full((len(requested), self.config.vocab_size), np.nan, np.float32)
        fails = self.steps in self.fail_at
        checkpoints = dict([] if inputs.checkpoints is None else inputs.checkpoints.tolist())
        self._deferred = {}
        for row in range(inputs.seq_lens.size):
            first, end = int(inputs.query_start_loc[row]), int(inputs.query_start_loc[row + 1])
            length = int(inputs.seq_lens[row])
            if not length:
                continue
            assert inputs.positions[first:end].tolist() == list(range(length - (end - first), length))
            self._store(inputs, first, end)
            slot = int(inputs.state_indices[row])
            state = self.states[slot].copy() if self.config.recurrent_layers else np.zeros(2)
            deferred = inputs.deferred is not None and bool(inputs.deferred[row])
            if deferred:
                assert 1 < end - first <= self._max_rollback
                self._deferred[row] = slot, []
            for token in range(first, end):
                if self.config.recurrent_layers:
                    state = self._consumed(state, int(inputs.input_ids[token]))
                    if deferred:
                        self._deferred[row][1].append(state)
                    if token in checkpoints:
                        self.states[checkpoints[token]] = np.nan if fails else state
                if token in requested and not fails:
                    position = int(inputs.positions[token])
                    logits[requested[token]] = self._row_logits(inputs.block_table[row], position + 1, state)
            if self.config.recurrent_layers and not deferred:
                self.states[slot] = np.nan if fails else state
        if fails:
            raise EngineError("the toy engine was told to fail")
        return logits

    def close(self) -> None:
        self.closed = True

    def _store(self, inputs: PackedInputs, first: int, end: int) -> None:
        if self.config.kv_layers:
            values = toy_kv(inputs.input_ids[first:end], inputs.positions[first:end])
            self.kv.reshape(-1)[inputs.slot_mapping[first:end]] = values

    @staticmethod
    def _consumed(state: np.ndarray, token: int) -> np.ndarray:
        value, count = state
        assert value == int(value), "a poisoned state was read"
        return np.array([(int(value) * 31 + token * 7 + 1) % _MODULUS, count + 1])

    def _row_logits(self, table: np.ndarray, length: int, state_and_count: np.ndarray) -> np.ndarray:
        mix = 0
        if self.config.kv_layers:
            first = max(0, length - (self.config.kv_layers[0].sliding_window or length))
            positions = np.arange(first, length)
            blocks = table[positions // self.sizes.block_size]
            assert (blocks >= 0).all(), "a block is read that the table does not have"
            values = self.kv[blocks, positions % self.sizes.block_size]
            assert not np.isnan(values).any(), "a poisoned block was read"
            mix += int(((positions + 1) * values).sum())
        if self.config.recurrent_layers:
            state, count = state_and_count
            assert count == length, "a state has not consumed exactly its tokens"
            mix += 17 * int(state) + 5 * int(count)
        return _logits(mix, self.config.vocab_size)

    def _check(self, inputs: PackedInputs) -> None:
        rows, total = inputs.seq_lens.size, inputs.input_ids.size
        assert not self.closed and 1 <= total <= self._limits.max_tokens and 1 <= rows <= self._limits.max_rows
        assert inputs.input_ids.dtype == inputs.positions.dtype == np.int64
        assert inputs.input_ids.shape == inputs.positions.shape == inputs.slot_mapping.shape == (total,)
        for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping", "state_indices", "logits_indices"):
            array = getattr(inputs, name)
            assert array.dtype == np.int32 and array.flags.c_contiguous, name
        bounds = inputs.query_start_loc
        assert bounds[0] == 0 and bounds[-1] == total and (np.diff(bounds) >= 1).all()
        assert inputs.block_table.shape[0] == rows and inputs.state_indices.shape == (rows,)
        assert (np.diff(inputs.logits_indices) > 0).all()
        for used in (inputs.slot_mapping, inputs.state_indices):
            used = used[used >= 0]
            assert np.unique(used).size == used.size, "two tokens or rows write to one place"
        if inputs.checkpoints is not None:
            check_packed(replace(inputs, deferred=None), self._limits, self.config, self.sizes, 0, self.takes)
        padding = inputs.seq_lens == 0
        # Of steps that are launched before the tokens of others are known, any row may be padding.
        assert self.chains_steps or (np.diff(padding.astype(int)) >= 0).all()
        assert (inputs.state_indices[padding] == -1).all() and (inputs.slot_mapping[bounds[:-1][padding]] == -1).all()
