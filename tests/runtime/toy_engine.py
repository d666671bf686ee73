"""An exact engine in NumPy: every state is an integer function of precisely the tokens that its row consumed.

A padding token that leaks into a state, two rows mixed up, a stale buffer or a wrong position changes the logits,
and ``toy_logits`` recomputes the right ones from scratch. Whatever the contract leaves unspecified is poisoned with
NaN: logits of idle rows, logits of the step before, cache positions that ``reserve`` added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.layer_types import ATTENTION, RECURRENT_LAYER_TYPES
from hybridge.artifact.names import conv_state, past_key, past_value, present, recurrent_state
from hybridge.runtime.engines.dense import DenseEngine, StateBuffer, StateSet, StepInputs

HYBRID = ("mamba", "mlp", "attention", "mamba", "moe", "attention")
PURE_ATTENTION = ("attention", "attention")
PURE_MAMBA = ("mamba", "mamba")
VOCAB = 61
CONV_KERNEL = 3
_MODULUS = 9973


def toy_config(
    layer_types: Sequence[str] = HYBRID,
    max_seq_len: int = 96,
    max_batch: int = 4,
    vocab: int = VOCAB,
    eos: tuple[int, ...] = (),
    all_logits: bool = False,
) -> RuntimeConfig:
    """The config of a toy model with the given layers."""
    kv = tuple(KVLayerConfig(1, 2) for kind in layer_types if kind == ATTENTION)
    recurrent = tuple(
        RecurrentLayerConfig(1, 1, 2, 1, CONV_KERNEL) for kind in layer_types if kind in RECURRENT_LAYER_TYPES
    )
    states = [
        Binding(name, DType.FLOAT32, ("batch", 1, "max_seq", 2), present(name))
        for k in range(len(kv))
        for name in (past_key(k), past_value(k))
    ]
    for r in range(len(recurrent)):
        states.append(Binding(conv_state(r), DType.FLOAT32, ("batch", 1, CONV_KERNEL), present(conv_state(r))))
        states.append(Binding(recurrent_state(r), DType.FLOAT32, ("batch", 1, 1, 2), present(recurrent_state(r))))
    inputs = (
        Binding("input_ids", DType.INT64, ("batch", "seq")),
        Binding("context_lengths", DType.INT32, ("batch",)),
        Binding("past_lengths", DType.INT32, ("batch",)),
        *states,
    )
    logits = Binding("logits", DType.FLOAT32, ("batch", "seq", vocab) if all_logits else ("batch", vocab))
    outputs = (logits, *(Binding(s.replaced_by or "", s.dtype, s.shape) for s in states))
    return RuntimeConfig(
        model_type="toy",
        layout="dense",
        dtype=DType.FLOAT32,
        vocab_size=vocab,
        hidden_size=8,
        max_batch_size=max_batch,
        max_seq_len=max_seq_len,
        layer_types=tuple(layer_types),
        kv_layers=kv,
        kv_cache_dtype=DType.FLOAT32,
        recurrent_layers=recurrent,
        recurrent_state_dtype=DType.FLOAT32,
        conv_state_dtype=DType.FLOAT32,
        eos_token_ids=eos,
        bindings=GraphBindings(inputs, outputs),
    ).check()


def toy_logits(config: RuntimeConfig, tokens: Sequence[int]) -> np.ndarray:
    """Logits [vocab] after ``tokens``, from scratch in Python integers."""
    mix = 0
    for k in range(len(config.kv_layers)):
        mix += sum((p + 1) * (_key(token, p, k) + 3 * token) for p, token in enumerate(tokens))
    for r in range(len(config.recurrent_layers)):
        state = 0
        for token in tokens:
            state = (state * 31 + token * 7 + r + 1) % _MODULUS
        window = [0] * CONV_KERNEL + [token + 1 for token in tokens]
        mix += 17 * state + 5 * len(tokens) + sum((i + 1) * x for i, x in enumerate(window[-CONV_KERNEL:]))
    return _logits(mix, config.vocab_size)


def toy_greedy(config: RuntimeConfig, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy continuation of ``prompt``, each token recomputed from scratch."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(toy_logits(config, tokens).argmax()))
    return tokens[len(prompt) :]


def _key(token: int, position: int, layer: int) -> int:
    return (token * 13 + position * 5 + layer) % 1009


def _logits(mix: int, vocab: int) -> np.ndarray:
    ids = np.arange(vocab, dtype=np.int64)
    return (((mix + ids * ids * 31 + ids * 7) % 1009) / 200).astype(np.float32)


class ToyBuffer(StateBuffer):
    """One state array; refuses to be used after the step or growth that ended its validity."""

    def __init__(self, states: ToyStates, spec: Binding) -> None:
        self.spec = spec
        self._states = states
        self._version = states.version
        self.shape = states.arrays[spec.name].shape

    @property
    def _array(self) -> np.ndarray:
        assert self._version == self._states.version, "a state buffer was kept across a step or a growth"
        return self._states.arrays[self.spec.name]

    def read_row(self, row: int, length: int | None = None) -> np.ndarray:
        value = self._array[row]
        return (value[:, :length] if "max_seq" in self.spec.shape else value).copy()

    def write_row(self, row: int, value: np.ndarray) -> None:
        assert value.dtype == np.float32
        if "max_seq" in self.spec.shape:
            self._array[row][:, : value.shape[1]] = value
        else:
            self._array[row] = value

    def copy_row(self, source: int, target: int) -> None:
        self._array[target] = self._array[source]

    def zero_rows(self, rows: list[int] | None = None, length: int | None = None) -> None:
        kept = slice(None) if length is None or "max_seq" not in self.spec.shape else slice(length)
        for row in range(len(self._array)) if rows is None else rows:
            self._array[row][:, kept] = 0


class ToyStates(StateSet):
    """Zeroed arrays by name."""

    def __init__(self, engine: ToyEngine, batch: int, max_seq: int) -> None:
        self.batch = batch
        self.version = 0
        self._engine = engine
        self._max_seq = max_seq
        self.arrays = {
            spec.name: np.zeros(spec.resolve(batch=batch, max_seq=max_seq), np.float32) for spec in engine.state_specs
        }

    @property
    def buffers(self) -> Mapping[str, StateBuffer]:
        return {spec.name: ToyBuffer(self, spec) for spec in self._engine.state_specs}

    @property
    def max_seq(self) -> int:
        return self._max_seq

    def reserve(self, max_seq: int) -> None:
        if max_seq > self._engine.max_seq_len:
            raise RequestError(f"expected at most {self._engine.max_seq_len} positions, found {max_seq}")
        if max_seq <= self._max_seq:
            return
        self.version += 1
        for spec in self._engine.state_specs:
            if "max_seq" in spec.shape:
                grown = np.full(spec.resolve(batch=self.batch, max_seq=max_seq), np.nan, np.float32)
                grown[:, :, : self._max_seq] = self.arrays[spec.name]
                self.arrays[spec.name] = grown
        self._max_seq = max_seq


class ToyEngine(DenseEngine):
    """Runs the toy model; ``steps`` records the shape of every step's input_ids."""

    name: ClassVar[str] = "toy"

    def __init__(self, config: RuntimeConfig, max_step_tokens: int | None = None) -> None:
        self.config = config
        self.steps: list[tuple[int, int]] = []
        self.closed = False
        self.fail_at_step: int | None = None
        self._max_step_tokens = max_step_tokens or config.max_seq_len
        self._last: np.ndarray | None = None

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return self.config.bindings.states

    @property
    def max_batch_size(self) -> int:
        return self.config.max_batch_size

    @property
    def max_seq_len(self) -> int:
        return self.config.max_seq_len

    @property
    def max_step_tokens(self) -> int:
        return self._max_step_tokens

    def allocate_states(self, batch: int, max_seq: int) -> ToyStates:
        if not (1 <= batch <= self.max_batch_size and 1 <= max_seq <= self.max_seq_len):
            raise RequestError(f"batch {batch} or max_seq {max_seq} exceeds the engine's limits")
        return ToyStates(self, batch, max_seq)

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        assert isinstance(states, ToyStates)
        self._check(inputs, states)
        self.steps.append((inputs.input_ids.shape[0], inputs.input_ids.shape[1]))
        if self.fail_at_step is not None and len(self.steps) >= self.fail_at_step:
            raise EngineError("the toy engine was told to fail")
        states.version += 1
        if self._last is not None:
            self._last[:] = np.nan
        batch, seq = inputs.input_ids.shape
        logits = np.full((batch, seq, self.config.vocab_size), np.nan, np.float32)
        for row in range(batch):
            count, past = int(inputs.context_lengths[row]), int(inputs.past_lengths[row])
            if count and not past:
                # Engines may multiply what they do not attend to by 0. NaN: grown and not written.
                caches = [array for name, array in states.arrays.items() if name.startswith("past_")]
                assert not any(np.nan_to_num(array[row]).any() for array in caches), "tokens of another sequence"
            for t in range(count):
                self._consume(states.arrays, row, int(inputs.input_ids[row, t]), past + t)
                if self.config.all_logits or t == count - 1:
                    logits[row, t] = _logits(self._mix(states.arrays, row, past + t + 1), self.config.vocab_size)
        if not self.config.all_logits:
            last = np.maximum(inputs.context_lengths - 1, 0)
            logits = logits[np.arange(batch), last]
        self._last = logits
        return logits

    def close(self) -> None:
        self.closed = True

    def _check(self, inputs: StepInputs, states: ToyStates) -> None:
        assert not self.closed
        assert inputs.input_ids.dtype == np.int64 and inputs.input_ids.flags.c_contiguous
        assert inputs.context_lengths.dtype == inputs.past_lengths.dtype == np.int32
        batch, seq = inputs.input_ids.shape
        assert inputs.context_lengths.shape == inputs.past_lengths.shape == (batch,) and batch == states.batch
        assert 1 <= seq <= self.max_step_tokens
        assert (inputs.context_lengths >= 0).all() and (inputs.context_lengths <= seq).all()
        assert inputs.context_lengths.any() and (inputs.past_lengths >= 0).all()
        assert ((inputs.input_ids >= 0) & (inputs.input_ids < self.config.vocab_size)).all()
        if (inputs.past_lengths + inputs.context_lengths > states.max_seq).any():
            raise EngineError("a row leaves its cache")

    def _consume(self, arrays: Mapping[str, np.ndarray], row: int, token: int, position: int) -> None:
        for k in range(len(self.config.kv_layers)):
            arrays[past_key(k)][row, 0, position] = _key(token, position, k)
            arrays[past_value(k)][row, 0, position] = token
        for r in range(len(self.config.recurrent_layers)):
            conv = arrays[conv_state(r)][row, 0]
            conv[:] = [*conv[1:], token + 1]
            state = arrays[recurrent_state(r)][row, 0, 0]
            state[:] = [(_exact(state[0]) * 31 + token * 7 + r + 1) % _MODULUS, state[1] + 1]

    def _mix(self, arrays: Mapping[str, np.ndarray], row: int, length: int) -> int:
        mix = 0
        for k in range(len(self.config.kv_layers)):
            keys, values = (arrays[name][row, 0, :length, 1] for name in (past_key(k), past_value(k)))
            mix += sum(
                (p + 1) * (_exact(key) + 3 * _exact(v)) for p, (key, v) in enumerate(zip(keys, values, strict=True))
            )
        for r in range(len(self.config.recurrent_layers)):
            state, conv = arrays[recurrent_state(r)][row, 0, 0], arrays[conv_state(r)][row, 0]
            mix += 17 * _exact(state[0]) + 5 * _exact(state[1]) + sum((i + 1) * _exact(x) for i, x in enumerate(conv))
        return mix


def _exact(value: np.floating) -> int:
    assert value == int(value), "a state is not an integer"
    return int(value)
