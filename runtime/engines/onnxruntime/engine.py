"""The ONNX Runtime engine: one artifact on the CPU, in float32."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import add
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from artifact.bindings import Binding
from artifact.config import RuntimeConfig, read_config
from artifact.errors import ArtifactError, EngineError, RequestError
from artifact.names import LOGITS
from runtime.engines.base import Engine, StateSet, StepInputs
from runtime.engines.onnxruntime.bound_run import BoundRun, FormSession
from runtime.engines.onnxruntime.inner_values import expose_values
from runtime.engines.onnxruntime.kernels import installed_kernels
from runtime.engines.onnxruntime.rewrite import GraphForm, RewrittenGraph, rewrite
from runtime.engines.onnxruntime.row_runs import RowRun, row_runs
from runtime.engines.onnxruntime.session import create_session
from runtime.engines.onnxruntime.states import ArrayStateSet, engine_specs
from runtime.engines.onnxruntime.weights import WeightStore

MODEL_FILE = "model.onnx"
# More tokens at once make no step faster, but the scores of attention grow with tokens times context.
_STEP_TOKENS = 512


class OnnxRuntimeEngine(Engine):
    """Runs an artifact folder with ONNX Runtime's CPU provider.

    All sessions share one set of weights. The sessions for several tokens and for decoding one row are
    created at once, the one for decoding several rows at its first use.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; ``threads`` defaults to the CPUs that this process may use.

        ArtifactError when the folder is not a complete artifact, EngineError when ONNX Runtime refuses it.
        """
        self._folder = Path(folder).resolve()
        self.config: RuntimeConfig = read_config(self._folder)
        if self.config.layout != "dense":
            raise EngineError(
                f"{folder}: expected layout dense, found {self.config.layout}: export without --layout for ONNX Runtime"
            )
        self._threads = threads or _available_cpus()
        self._specs = engine_specs(self.config.bindings.states)
        self._replaced_by = {spec.name: str(spec.replaced_by) for spec in self._specs}
        self._weights = WeightStore(self._read_model(), self._folder)
        self._forms: dict[GraphForm, FormSession] = {}
        self._value_forms: dict[tuple[str, ...], FormSession] = {}
        self._layouts = self._open(GraphForm.GENERAL).layouts
        # Opened now, so that the first answer does not pause before its second token.
        self._form(RowRun(0, 1, 1))

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return self._specs

    @property
    def max_batch_size(self) -> int:
        return self.config.max_batch_size

    @property
    def max_seq_len(self) -> int:
        return self.config.max_seq_len

    @property
    def max_step_tokens(self) -> int:
        return min(_STEP_TOKENS, self.config.max_seq_len)

    @property
    def weights(self) -> WeightStore:
        """The weights that the sessions share."""
        return self._weights

    def allocate_states(self, batch: int, max_seq: int) -> ArrayStateSet:
        if not 1 <= batch <= self.max_batch_size:
            raise RequestError(
                f"expected 1 to {self.max_batch_size} rows in a batch, found {batch}: send fewer at once, or export "
                "with a larger --max-batch"
            )
        return ArrayStateSet(self._specs, self._layouts, batch, max_seq, self.max_seq_len)

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        if not isinstance(states, ArrayStateSet):
            raise EngineError(f"expected states allocated by this engine, found {type(states).__name__}")
        ids, context, past = inputs.input_ids, inputs.context_lengths, inputs.past_lengths
        _check_step(ids, context, past, states)
        runs = row_runs(context, past)
        if len(runs) == 1 and runs[0].rows == states.batch and runs[0].tokens == ids.shape[1]:
            return self._run(runs[0], states, ids, past)
        logits = self._logits(states.batch, ids.shape[1])
        for run in runs:
            rows = slice(run.start, run.stop)
            self._place(logits, run, self._run(run, states, ids[rows, : run.tokens], past[rows]))
        return logits

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        if not isinstance(states, ArrayStateSet):
            raise EngineError(f"expected states allocated by this engine, found {type(states).__name__}")
        ids, context, past = inputs.input_ids, inputs.context_lengths, inputs.past_lengths
        _check_step(ids, context, past, states)
        if tuple(values) not in self._value_forms:
            self._value_forms[tuple(values)] = self._create(GraphForm.GENERAL, values)[0]
        form = self._value_forms[tuple(values)]
        batch, tokens = ids.shape
        found = {name: np.zeros((batch, tokens, self.config.hidden_size), np.float32) for name in values}
        logits = self._logits(batch, tokens)
        for run in row_runs(context, past):
            rows = slice(run.start, run.stop)
            extra = {name: np.zeros((run.rows, run.tokens, self.config.hidden_size), np.float32) for name in values}
            part = self._logits(run.rows, run.tokens)
            bound = BoundRun(form, states, self._replaced_by, run, part, extra)
            bound(ids[rows, : run.tokens], past[rows])
            states.commit(bound.swapped, run.start, run.stop)
            self._place(logits, run, part)
            for name in values:
                found[name][rows, : run.tokens] = extra[name]
        return {LOGITS: logits, **found}

    def close(self) -> None:
        self._forms.clear()
        self._value_forms.clear()

    def _run(self, run: RowRun, states: ArrayStateSet, ids: np.ndarray, past: np.ndarray) -> np.ndarray:
        """One run; its logits are valid until the next run of the same shape on these states."""
        key = (states.turns, run)
        bound: BoundRun | None = states.bound.get(key)
        if bound is None:
            form = self._form(run)
            bound = BoundRun(form, states, self._replaced_by, run, self._logits(run.rows, run.tokens))
            if run.tokens == 1:  # decoding repeats the same shape; a prompt's length rarely comes back
                states.bound[key] = bound
        try:
            bound(ids, past)
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise EngineError(f"{self._folder}: ONNX Runtime failed in a step: {error}") from error
        states.commit(bound.swapped, run.start, run.stop)
        return bound.logits

    def _place(self, logits: np.ndarray, run: RowRun, part: np.ndarray) -> None:
        """Put the logits of one run into those of the step."""
        if self.config.all_logits:
            logits[run.start : run.stop, : run.tokens] = part
        else:
            logits[run.start : run.stop] = part

    def _form(self, run: RowRun) -> FormSession:
        if run.tokens > 1:
            form = GraphForm.GENERAL
        else:
            form = GraphForm.ONE_TOKEN if run.rows == 1 else GraphForm.TOKEN_PER_ROW
        if form not in self._forms and self._open(form).layouts != self._layouts:
            raise EngineError(f"{self._folder}: the graph forms disagree about the layout of states")
        return self._forms[form]

    def _open(self, form: GraphForm) -> RewrittenGraph:
        self._forms[form], graph = self._create(form)
        return graph

    def _create(self, form: GraphForm, values: Sequence[str] = ()) -> tuple[FormSession, RewrittenGraph]:
        graph = rewrite(self._read_model(), self.config, form, installed_kernels())
        expose_values(graph.model, values)
        session = create_session(graph, self._weights, self._folder, self._threads)
        return FormSession(session, graph.inputs, graph.in_place), graph

    def _read_model(self) -> ir.Model:
        path = self._folder / MODEL_FILE
        try:
            return ir.load(path)
        except Exception as error:  # protobuf and onnx_ir raise several kinds
            raise ArtifactError(f"{path}: expected an ONNX model ({error}): export the checkpoint again") from error

    def _logits(self, rows: int, tokens: int) -> np.ndarray:
        shape = (rows, tokens, self.config.vocab_size) if self.config.all_logits else (rows, self.config.vocab_size)
        return np.zeros(shape, np.float32)


def _check_step(ids: np.ndarray, context: np.ndarray, past: np.ndarray, states: ArrayStateSet) -> None:
    if ids.ndim != 2 or ids.shape[0] != states.batch or context.shape != past.shape or context.shape != ids.shape[:1]:
        raise EngineError(
            f"expected input_ids [{states.batch}, seq] and lengths [{states.batch}], found {list(ids.shape)}, "
            f"{list(context.shape)} and {list(past.shape)}"
        )
    # Plain integers: for a few rows, one NumPy reduction costs more than all of this.
    new, held = context.tolist(), past.tolist()
    if min(new) < 0 or max(new) > ids.shape[1]:
        raise EngineError(f"expected context lengths in 0..{ids.shape[1]}, found {new}")
    if min(held) < 0 or max(map(add, new, held)) > states.max_seq:
        raise EngineError(
            f"expected past and new tokens within {states.max_seq} positions, found {held} and "
            f"{new}: reserve more first"
        )


def _available_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1
