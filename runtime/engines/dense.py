"""The interface of every inference engine: declared states, buffers that the engine owns, and one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import DENSE, RuntimeConfig, read_config
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.step_result import RowsResult, StepResult
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling


@dataclass(frozen=True)
class StepInputs:
    """The tokens of one step. Rows are right-padded; a row of length 0 is skipped and keeps its states.

    input_ids [batch, seq] int64; context_lengths [batch] int32, valid new tokens of each row;
    past_lengths [batch] int32, tokens that the row's caches hold already. The arrays belong to the caller,
    who may change them once the step has returned.
    """

    input_ids: np.ndarray
    context_lengths: np.ndarray
    past_lengths: np.ndarray


class StateBuffer(ABC):
    """Storage of one state for all batch rows, on the engine's device. Axis 0 is the batch row.

    ``spec`` declares name, type and symbolic shape as the engine holds them (an engine may compute in a
    wider type than the artifact stores). Rows exchanged with the host are NumPy arrays of ``spec.dtype``.
    """

    spec: Binding
    shape: tuple[int, ...]

    @abstractmethod
    def read_row(self, row: int, length: int | None = None) -> np.ndarray:
        """A copy of one row; of a state with a max_seq axis only the first ``length`` positions of it."""

    @abstractmethod
    def write_row(self, row: int, value: np.ndarray) -> None:
        """Overwrite one row; a value shorter along the max_seq axis fills the first positions."""

    @abstractmethod
    def copy_row(self, source: int, target: int) -> None:
        """Copy row ``source`` over row ``target``."""

    def take_row(self, target: int, other: StateBuffer, source: int, length: int) -> None:
        """Copy row ``source`` of ``other``, the same state of another set of the same engine, over row ``target``.

        Of a state with a max_seq axis only the first ``length`` positions. Engines whose states are not in host
        memory copy them where they are.
        """
        value = other.read_row(source, length)
        if value.size:
            self.write_row(target, value)

    @abstractmethod
    def zero_rows(self, rows: list[int] | None = None, length: int | None = None) -> None:
        """Zero the given rows (all of them by default).

        length: of a state with a max_seq axis only so many positions need to become zero.
        """


class StateSet(ABC):
    """All states of a fixed number of batch rows, bound to one engine. Made by ``DenseEngine.allocate_states``."""

    batch: int

    @property
    @abstractmethod
    def buffers(self) -> Mapping[str, StateBuffer]:
        """The buffers by graph input name. Valid until the next ``DenseEngine.step`` or ``reserve`` on this set."""

    @property
    @abstractmethod
    def max_seq(self) -> int:
        """Positions that the KV caches hold at present."""

    @abstractmethod
    def reserve(self, max_seq: int) -> None:
        """Grow the KV caches to hold at least ``max_seq`` positions, keeping their content; never shrinks.

        RequestError when ``max_seq`` exceeds what the engine can hold (``DenseEngine.max_seq_len``).
        """

    def expect_few_tokens(self) -> None:  # noqa: B027 (other engines have nothing to do)
        """New caches stay mostly empty: allocate memory only as it is written, where the engine can."""


class Decoder(ABC):
    """Decodes the same rows token by token. Made by ``DenseEngine.decoder``; what repeats is made once."""

    @abstractmethod
    def step(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> Sequence[np.ndarray]:
        """Give each row its token; returns the logits [vocab] float32 of each row, valid until the engine's next step.

        The lists go with the rows one by one; all else is as in ``DenseEngine.step``.
        """

    def launch(
        self,
        tokens: Sequence[int],
        past_lengths: Sequence[int],
        samplings: Mapping[int, TokenSampling] = NO_SAMPLING,
    ) -> StepResult:
        """Like ``step``, with the result as of ``PagedEngine.launch``. samplings: by index of the rows."""
        return RowsResult(self.step(tokens, past_lengths))


def read_dense_config(folder: Path) -> RuntimeConfig:
    """config.json of ``folder``; ArtifactError when it is damaged, EngineError when its layout is not dense."""
    config: RuntimeConfig = read_config(folder)
    if config.layout != DENSE:
        raise EngineError(
            f"{folder}: expected layout dense, found {config.layout}: export with `layout='dense'` for this engine"
        )
    return config


class DenseEngine(ABC):
    """One artifact made runnable. Not safe for use from several threads at once."""

    name: ClassVar[str]
    config: RuntimeConfig
    # What a user should know about the choice of this engine, one sentence each.
    notes: tuple[str, ...] = ()

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        """The states as this engine holds them, in graph order."""
        return self.config.bindings.states

    @property
    def max_batch_size(self) -> int:
        """The most batch rows of one step."""
        return self.config.max_batch_size

    @property
    def max_seq_len(self) -> int:
        """The most tokens of one row, cached and new."""
        return self.config.max_seq_len

    @property
    def max_step_tokens(self) -> int:
        """The most new tokens per row in one step; longer prompts are fed in chunks."""
        return self.max_seq_len

    @property
    def shows_values(self) -> bool:
        """Whether ``step_values`` shows the graph's inner values; a fused engine has none."""
        return False

    @abstractmethod
    def allocate_states(self, batch: int, max_seq: int) -> StateSet:
        """Zeroed states for ``batch`` rows, with room for ``max_seq`` positions in the KV caches.

        RequestError when batch or max_seq exceed the engine's limits.
        """

    @abstractmethod
    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        """Run one prefill, chunk or decode step and advance ``states`` in place.

        Returns logits [batch, vocab] float32 of the last valid token of each row, or
        [batch, seq, vocab] when the artifact was exported with all logits, or hidden states [batch, seq, hidden]
        when it has no head. The array may be reused by the next step: copy what must live longer. Tokens past a
        row's context length have unspecified logits.
        Every row needs past_lengths + context_lengths <= states.max_seq; EngineError otherwise.
        """

    def feed(self, inputs: StepInputs, states: StateSet) -> None:
        """Like ``step``, for tokens after which no logits are needed; the work may go on after it has returned.

        An error of that work is raised by a later call.
        """
        self.step(inputs, states)

    def decoder(self, rows: Sequence[int], states: StateSet) -> Decoder:
        """A decoder of ``rows`` of ``states`` (ascending, at least one) token by token; other rows do not change.

        It stays good while other steps run on the same states, and when they grow.
        """
        return StepDecoder(self, rows, states)

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        """Like ``step``, and also returns the named inner values of the graph (artifact.names), for diagnosis.

        Inner values are [batch, seq, size] float32, of last tokens alone [batch, size]; the logits come under "logits".
        EngineError when the engine cannot show inner values (a fused engine) or has no value of that name.
        """
        raise EngineError(f"the {self.name} engine cannot show the graph's inner values: verify with onnxruntime")

    def check_batch(self, batch: int, remedy: str = "export with a larger `max_batch_size`") -> None:
        """RequestError where states of ``batch`` rows are more than the engine takes."""
        if not 1 <= batch <= self.max_batch_size:
            raise RequestError(
                f"expected 1 to {self.max_batch_size} rows in a batch, found {batch}: send fewer at once, or {remedy}"
            )

    def close(self) -> None:  # noqa: B027 (an engine without resources needs no override)
        """Release the engine's resources; calling it twice is allowed."""


class StepDecoder(Decoder):
    """Decoding through ``DenseEngine.step``."""

    def __init__(self, engine: DenseEngine, rows: Sequence[int], states: StateSet) -> None:
        self._engine, self._rows, self._states = engine, list(rows), states
        lengths = np.zeros((2, states.batch), np.int32)
        lengths[0, self._rows] = 1
        self._inputs = StepInputs(np.zeros((states.batch, 1), np.int64), lengths[0], lengths[1])

    def step(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> Sequence[np.ndarray]:
        logits = self._engine.step(self._filled(tokens, past_lengths), self._states)
        return [logits[row] if logits.ndim == 2 else logits[row, 0] for row in self._rows]

    def _filled(self, tokens: Sequence[int], past_lengths: Sequence[int]) -> StepInputs:
        """The step that gives each row its token."""
        self._inputs.input_ids[self._rows, 0] = tokens
        self._inputs.past_lengths[self._rows] = past_lengths
        return self._inputs
