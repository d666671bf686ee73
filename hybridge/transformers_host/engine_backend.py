"""A text model behind which an engine of the runtime runs an artifact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridge.artifact.names import conv_state, recurrent_state
from hybridge.runtime.caches import HybridCacheManager, RowSnapshot
from hybridge.runtime.engines.dense import Decoder, DenseEngine, StateBuffer, StepInputs
from hybridge.transformers_host.columns import Columns
from hybridge.transformers_host.packing import RowPacking
from hybridge.transformers_host.rollback import Rollback, recorded
from hybridge.transformers_host.rows import LayerState, TextBackend, TextRows


class EngineBackend(TextBackend):
    """``engine`` over an artifact without head. Released states are kept, one set for each number of rows."""

    def __init__(self, engine: DenseEngine, max_cache_len: int) -> None:
        self.engine = engine
        self.layer_types = engine.config.layer_types
        self.max_batch_size = engine.max_batch_size
        self.max_cache_len = min(max_cache_len, engine.max_seq_len)
        self._idle: dict[int, HybridCacheManager] = {}

    def rows(self, batch: int, tokens: int) -> EngineRows:
        self.check_room(batch, tokens)
        states = self._idle.pop(batch, None)
        if states is None:
            states = HybridCacheManager(self.engine, batch, tokens)
        else:
            states.clear_states()
        return EngineRows(self, states)

    def keep(self, states: HybridCacheManager) -> None:
        """Reuse states that are no longer needed."""
        self._idle[states.rows] = states

    def close(self) -> None:
        self._idle.clear()
        self.engine.close()


class EngineRows(TextRows):
    """Rows of an engine, whose caches hold tokens only: padding is left out on the way in and put back on the way out.

    ``lengths`` of the states count a row's tokens, ``columns`` what transformers counts.
    """

    def __init__(self, backend: EngineBackend, states: HybridCacheManager) -> None:
        self._backend, self._states = backend, states
        self._released = False
        self.columns = Columns(states.rows)
        self._rollback: Rollback[list[RowSnapshot]] | None = None
        self._decoder: Decoder | None = None

    @property
    def batch(self) -> int:  # type: ignore[override]
        return self._states.rows

    def step(self, input_ids: torch.Tensor, tokens: np.ndarray | None) -> torch.Tensor:
        ids = input_ids.cpu().numpy()
        new = [ids.shape[1]] * len(ids) if tokens is None else tokens.sum(axis=1).tolist()
        lengths = self._states.lengths
        longest = max(map(sum, zip(lengths, new, strict=True)))
        self._backend.check_room(len(ids), longest)
        self._states.reserve(longest)
        if self._rollback is not None:
            self._rollback.before(self._capture, self.columns.count, ids, tokens)
        hidden = self._decode(ids[:, 0].tolist()) if set(new) == {1} == {ids.shape[1]} else self._feed(ids, tokens)
        self.columns.append(ids.shape[1], tokens)
        return torch.from_numpy(hidden)

    def select(self, rows: Sequence[int]) -> None:
        if len(rows) == self.batch:
            self._permute(list(rows))
        else:
            self._backend.check_room(len(rows), 0)
            self._states.compact(list(rows))
            self._decoder = None
        self.columns.select(rows)
        if self._rollback is not None:
            self._rollback.forget()

    def crop(self, columns: int) -> None:
        recurrent = bool(self._states.mamba.num_layers)
        if columns and recurrent:
            self._rewind(recorded(self._rollback, self.columns.count), columns)
        elif columns:
            dropped = self.columns.tokens[:, self.columns.count - columns :].sum(axis=1)
            self._states.lengths[:] = [n - int(d) for n, d in zip(self._states.lengths, dropped, strict=True)]
            self.columns.crop(columns)
        if self._rollback is not None:
            self._rollback.forget()

    def record(self) -> None:
        if self._rollback is None:
            self._rollback = Rollback()

    def clear(self) -> None:
        self._states.clear_states()
        self.columns = Columns(self.batch)
        if self._rollback is not None:
            self._rollback.forget()

    def read_layer(self, index: int) -> LayerState:
        found: dict[str, torch.Tensor] = {}
        buffers = self._states.states.buffers
        for route in self._states.routes(index):
            k = route.local_index
            if route.manager is self._states.kv:
                found |= zip(("keys", "values"), self._read_caches(k), strict=True)
            else:
                names = {"conv": conv_state(k), "recurrent": recurrent_state(k)}
                found |= {key: _stacked(buffers[name], self.batch) for key, name in names.items() if name in buffers}
        return found

    def write_layers(self, layers: Sequence[LayerState], tokens: np.ndarray) -> None:
        counts = [int(n) for n in tokens.sum(axis=1)]
        self._backend.check_room(len(tokens), max(counts))
        self.clear()
        self._states.reserve(max(counts))
        self.columns.append(tokens.shape[1], tokens)
        for index, layer in enumerate(layers):
            for route in self._states.routes(index):
                k = route.local_index
                if route.manager is self._states.kv:
                    self._write_caches(k, layer["keys"], layer["values"])
                    continue
                for key, name in (("conv", conv_state(k)), ("recurrent", recurrent_state(k))):
                    if key in layer:
                        _write_rows(self._buffer(name), layer[key])
        self._states.lengths[:] = counts

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._backend.keep(self._states)

    def _capture(self) -> list[RowSnapshot]:
        return [self._states.mamba.capture(row) for row in range(self.batch)]

    def _restore(self, snapshots: list[RowSnapshot]) -> None:
        for row, snapshot in enumerate(snapshots):
            self._states.mamba.restore(row, snapshot)

    def _rewind(self, rollback: Rollback[list[RowSnapshot]], columns: int) -> None:
        again = rollback.rewind(self._restore, self.columns.count - columns)
        self.columns.crop(self.columns.count - rollback.start)
        if again is not None:
            self._feed(*again)
            self.columns.append(again[0].shape[1], again[1])

    def _decode(self, tokens: list[int]) -> np.ndarray:
        states = self._states
        if self._decoder is None:
            self._decoder = self._backend.engine.decoder(range(states.rows), states.states)
        hidden = self._decoder.step(tokens, states.lengths)
        states.lengths[:] = [length + 1 for length in states.lengths]
        return np.stack(hidden)[:, None]

    def _feed(self, ids: np.ndarray, tokens: np.ndarray | None) -> np.ndarray:
        packing = RowPacking(ids, tokens)
        states, engine = self._states, self._backend.engine
        hidden = np.zeros((*ids.shape, engine.config.hidden_size), np.float32)
        for start, chunk, counts in packing.chunks(engine.max_step_tokens):
            past = np.array(states.lengths, np.int32)
            packing.place(hidden, start, engine.step(StepInputs(chunk, counts, past), states.states), counts)
            states.lengths[:] = (past + counts).tolist()
        return hidden

    def _permute(self, rows: list[int]) -> None:
        """Row ``rows[i]`` becomes row i, in place; rows that are no longer read are overwritten first."""
        states, pending = self._states, {target: row for target, row in enumerate(rows) if target != row}
        while pending:
            free = [target for target in pending if target not in pending.values()]
            if free:
                for target in free:
                    states.copy_row(pending.pop(target), target)
                continue
            # Only circles are left: one row is put aside, so that its place is free.
            target = next(iter(pending))
            spare = HybridCacheManager(self._backend.engine, 1, states.lengths[target])
            spare.take_row(states, target, 0)
            row = target
            while pending[row] != target:
                states.copy_row(pending[row], row)
                row = pending.pop(row)
            states.take_row(spare, 0, row)
            del pending[row]

    def _buffer(self, name: str) -> StateBuffer:
        return self._states.states.buffers[name]

    def _read_caches(self, k: int) -> tuple[torch.Tensor, ...]:
        """Keys and values of attention layer ``k``.

        Those of latent attention are in transformers the latents, and what is behind them in the keys.
        """
        layer = self._backend.engine.config.kv_layers[k]
        caches = [self._read_cache(self._buffer(name)) for name in layer.state_names(k)]
        if layer.latent_dim is not None:
            return caches[0].tensor_split([layer.latent_dim], -1)
        return tuple(caches)

    def _write_caches(self, k: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The reverse of ``_read_caches``."""
        layer = self._backend.engine.config.kv_layers[k]
        caches = (keys, values) if layer.latent_dim is None else (torch.cat([keys, values], -1),)
        for name, cache in zip(layer.state_names(k), caches, strict=True):
            self._write_cache(name, cache)

    def _read_cache(self, buffer: StateBuffer) -> torch.Tensor:
        """Keys or values [rows, kv_heads, columns, head_dim], zero where there is padding."""
        tokens, shape = self.columns.tokens, buffer.shape
        result = np.zeros((self.batch, shape[1], self.columns.count, shape[3]), np.float32)
        for row, length in enumerate(self._states.lengths):
            result[row, :, np.flatnonzero(tokens[row])] = buffer.read_row(row, length).transpose(1, 0, 2)
        return torch.from_numpy(result)

    def _write_cache(self, name: str, cache: torch.Tensor) -> None:
        """``cache`` [rows, kv_heads, at most columns, head_dim]: of a sliding window only the last columns."""
        buffer, tokens = self._buffer(name), self.columns.tokens
        cached = cache.detach().to("cpu", torch.float32).numpy()
        missing = tokens.shape[1] - cached.shape[2]
        full = np.pad(cached, ((0, 0), (0, 0), (missing, 0), (0, 0)))
        for row in range(self.batch):
            buffer.write_row(row, full[row][:, tokens[row]].astype(buffer.spec.dtype.numpy))


def _stacked(buffer: StateBuffer, rows: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([buffer.read_row(row) for row in range(rows)]).astype(np.float32))


def _write_rows(buffer: StateBuffer, value: torch.Tensor) -> None:
    for row, state in enumerate(value.detach().to("cpu", torch.float32).numpy()):
        buffer.write_row(row, state.astype(buffer.spec.dtype.numpy))
