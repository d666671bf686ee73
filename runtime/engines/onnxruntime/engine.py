"""The ONNX Runtime engine: one artifact on the CPU, in float32."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.bindings import BATCH, SEQ
from hybridge.artifact.errors import EngineError
from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.dense import StateSet, StepInputs
from hybridge.runtime.engines.onnxruntime.array_engine import ArrayEngine, own_states
from hybridge.runtime.engines.onnxruntime.bound_run import BoundRun, FormSession
from hybridge.runtime.engines.onnxruntime.decoder import BoundDecoder
from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm
from hybridge.runtime.engines.onnxruntime.linear_form import library_notes
from hybridge.runtime.engines.onnxruntime.row_runs import RowRun, row_runs
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.session_graph import DenseGraph
from hybridge.runtime.engines.onnxruntime.states import ArrayStateSet
from hybridge.runtime.engines.onnxruntime.weights import WeightStore

# Larger steps are not faster, but attention scores grow with tokens times context.
_STEP_TOKENS = 512
# Each session packs its own copy of the quantised weights. Above this number of bytes, one session runs every step
# without padding: a token then takes a millisecond longer than in a session for single tokens.
MOST_BLOCK_BYTES = 128 * MIB
# For one token of a model with fewer parameters, a second thread takes processor time and saves none: 1.1 ms a token
# with 6 million parameters on two cores, by one thread and by two.
ONE_THREAD_PARAMETERS = 8_000_000


class OnnxRuntimeEngine(ArrayEngine):
    """Runs an artifact folder with ONNX Runtime's CPU provider.

    All sessions share one set of weights. The sessions for several tokens and for decoding one row are
    created at once, those for decoding several rows and for prompts of unequal length at their first use.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        graphs: GraphCache | None = None,
        exact_products: bool = False,
    ) -> None:
        """Load the artifact in ``folder``; ``threads`` defaults to the CPUs that this process may use, and to one for
        single tokens of small models.

        graphs: cache of rewritten graphs for later starts; None rewrites them each time. exact_products: as in
        EngineOptions.
        ArtifactError when the folder is not a complete artifact, EngineError when ONNX Runtime refuses it.
        """
        super().__init__(folder)
        self._threads, self._chooses_threads = threads or available_cpus(), threads is None
        self._graphs, self._exact = graphs, exact_products
        self._weights = WeightStore(self._folder)
        self._forms: dict[GraphForm, FormSession] = {}
        self._value_forms: dict[tuple[GraphForm, tuple[str, ...]], FormSession] = {}
        graph = self._open(GraphForm.GENERAL)
        self._layouts, self._has_one_session = graph.layouts, graph.block_bytes > MOST_BLOCK_BYTES
        self.notes = (*graph.rounding_notes(exact_products), *library_notes(graph))
        # Opened now, so that the first answer does not pause before its second token.
        self._form(RowRun(0, 1, 1))

    @property
    def max_step_tokens(self) -> int:
        return min(_STEP_TOKENS, self.config.max_seq_len)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def weights(self) -> WeightStore:
        """The weights that the sessions share."""
        return self._weights

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        own = own_states(states)
        ids, context, past = inputs.input_ids, inputs.context_lengths, inputs.past_lengths
        _check_step(ids, context, past, own)
        runs = row_runs(context, past)
        if len(runs) == 1 and runs[0].rows == own.batch and runs[0].tokens == ids.shape[1]:
            return self._feed(runs[0], own, ids, context, past)
        logits = self._logits(own.batch, ids.shape[1])
        for run in runs:
            rows = slice(run.start, run.stop)
            self._place(logits, run, self._feed(run, own, ids[rows, : run.tokens], context[rows], past[rows]))
        return logits

    def decoder(self, rows: Sequence[int], states: StateSet) -> BoundDecoder:
        own = own_states(states)
        return BoundDecoder(rows, own, lambda run: self._bound(run, own))

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        own = own_states(states)
        ids, context, past = inputs.input_ids, inputs.context_lengths, inputs.past_lengths
        _check_step(ids, context, past, own)
        batch, tokens = ids.shape
        found: dict[str, np.ndarray] = {}
        logits = self._logits(batch, tokens)
        for run in row_runs(context, past):
            rows = slice(run.start, run.stop)
            part = self._logits(run.rows, run.tokens)
            session = self._value_session(self._form_of(run), tuple(values))
            extra = {name: np.zeros(shape, np.float32) for name, shape in _value_shapes(session, run, values)}
            bound = BoundRun(session, own, self._replaced_by, run, part, self.config.result.name, extra)
            bound.feed(ids[rows, : run.tokens], context[rows], past[rows])
            own.commit(bound.swapped, run.start, run.stop)
            self._place(logits, run, part)
            for name, own_rows in extra.items():
                per_token = own_rows.ndim == 3
                shape = (batch, tokens, own_rows.shape[-1]) if per_token else (batch, own_rows.shape[-1])
                whole = found.setdefault(name, np.zeros(shape, np.float32))
                (whole[:, : run.tokens] if per_token else whole)[rows] = own_rows
        return {self.config.result.name: logits, **found}

    def close(self) -> None:
        self._weights.close()
        self._forms.clear()
        self._value_forms.clear()

    def _feed(
        self, run: RowRun, states: ArrayStateSet, ids: np.ndarray, context: np.ndarray, past: np.ndarray
    ) -> np.ndarray:
        """One run; its logits are valid until the next run of the same shape on these states."""
        bound = self._bound(run, states)
        bound.feed(ids, context, past)
        states.commit(bound.swapped, run.start, run.stop)
        return bound.logits

    def _bound(self, run: RowRun, states: ArrayStateSet) -> BoundRun:
        key = (states.parities, run)
        bound: BoundRun | None = states.bound.get(key)
        if bound is None:
            logits = self._logits(run.rows, run.tokens)
            bound = BoundRun(self._form(run), states, self._replaced_by, run, logits, self.config.result.name)
            if run.tokens == 1:  # decoding repeats the same shape; a prompt's length rarely recurs
                states.bound[key] = bound
        return bound

    def _place(self, logits: np.ndarray, run: RowRun, part: np.ndarray) -> None:
        """Copy the logits of one run to those of the step."""
        if self.config.all_logits:
            logits[run.start : run.stop, : run.tokens] = part
        else:
            logits[run.start : run.stop] = part

    def _form_of(self, run: RowRun) -> GraphForm:
        if run.padded:
            return GraphForm.PADDED
        if run.tokens > 1 or self._has_one_session:
            return GraphForm.GENERAL
        return GraphForm.ONE_TOKEN if run.rows == 1 else GraphForm.TOKEN_PER_ROW

    def _form(self, run: RowRun) -> FormSession:
        form = self._form_of(run)
        if form not in self._forms and self._open(form).layouts != self._layouts:
            raise EngineError(f"{self._folder}: the graph forms disagree about the layout of states")
        return self._forms[form]

    def _value_session(self, form: GraphForm, values: tuple[str, ...]) -> FormSession:
        if (form, values) not in self._value_forms:
            self._value_forms[form, values] = self._create(form, values)[0]
        return self._value_forms[form, values]

    def _open(self, form: GraphForm) -> DenseGraph:
        self._forms[form], graph = self._create(form)
        return graph

    def _create(self, form: GraphForm, values: Sequence[str] = ()) -> tuple[FormSession, DenseGraph]:
        if self._graphs is None or values:
            graph = self._rewritten(form, values)
        else:
            key = f"{form.name} {self._exact}"
            graph = self._graphs.get(self._folder, key, lambda: self._rewritten(form))
        self._opened.check()
        repeats = form in (GraphForm.ONE_TOKEN, GraphForm.TOKEN_PER_ROW)
        alone = self._chooses_threads and form is GraphForm.ONE_TOKEN and graph.parameters < ONE_THREAD_PARAMETERS
        threads = 1 if alone else self._threads
        session = create_session(graph, self._weights, self._folder, threads, plans_memory=repeats)
        return FormSession(session, graph.inputs, graph.in_place), graph

    def _rewritten(self, form: GraphForm, values: Sequence[str] = ()) -> DenseGraph:
        from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
        from hybridge.runtime.engines.onnxruntime.rewrite import rewrite

        return rewrite(self._read_model(), self.config, form, installed_kernels(), self._exact, values).serialised()

    def _logits(self, rows: int, tokens: int) -> np.ndarray:
        return np.zeros(self.config.result.resolve(**{BATCH: rows, SEQ: tokens}), np.float32)


def _value_shapes(form: FormSession, run: RowRun, values: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shape of each inner value in ``run``: [rows, tokens, size], of last tokens alone [rows, size]."""
    sizes = {output.name: output.shape for output in form.session.get_outputs()}
    for name in values:
        axes = (run.rows, run.tokens) if len(sizes[name]) == 3 else (run.rows,)
        yield name, (*axes, int(sizes[name][-1]))


def _check_step(ids: np.ndarray, context: np.ndarray, past: np.ndarray, states: ArrayStateSet) -> None:
    if ids.ndim != 2 or ids.shape[0] != states.batch or context.shape != past.shape or context.shape != ids.shape[:1]:
        raise EngineError(
            f"expected input_ids [{states.batch}, seq] and lengths [{states.batch}], found {list(ids.shape)}, "
            f"{list(context.shape)} and {list(past.shape)}"
        )
    if context.min() < 0 or context.max() > ids.shape[1]:
        raise EngineError(f"expected context lengths in 0..{ids.shape[1]}, found {context.tolist()}")
    if past.min() < 0 or (context + past).max() > states.max_seq:
        raise EngineError(
            f"expected past and new tokens within {states.max_seq} positions, found {past.tolist()} and "
            f"{context.tolist()}: reserve more first"
        )


def available_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1
