"""The ONNX Runtime engine for paged artifacts: packed steps on the CPU, in float32, pools updated in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import LOGITS
from hybridge.runtime.engines.onnxruntime.engine import MOST_BLOCK_BYTES, available_cpus
from hybridge.runtime.engines.onnxruntime.engine_inputs import MOST_REPLAYED, KvShape
from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache
from hybridge.runtime.engines.onnxruntime.graph_form import ROW_STARTS
from hybridge.runtime.engines.onnxruntime.linear_form import library_notes
from hybridge.runtime.engines.onnxruntime.paged_array_engine import PagedArrayEngine
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun, begun_blocks, by_slot, paged_runs, run_feeds
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_session import NO_CHECKPOINTS, PagedSession, RowCheckpoints
from hybridge.runtime.engines.onnxruntime.prepared_steps import PreparedSteps
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.session_graph import PagedGraph
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT, chosen_modes

if TYPE_CHECKING:
    from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredBatch, DeferredStates

# Up to this many bytes, weights are packed again for each kind of step with several tokens, which then takes three
# quarters of the time (half with a few draft tokens).
_MOST_PACKED_BYTES = 32 << 20
# Tokens of a row for which a model without states gets its own session; the others count theirs.
_MOST_TRIED = 8
# Maximum tokens of a row whose states can be deferred: snapshots of more would take too much memory.
_MOST_DEFERRED = 16
# Columns of a block table are a multiple of this number: a row that begins a block seldom needs arrays of other shapes.
_TABLE_COLUMNS = 16


class SessionKey(NamedTuple):
    """The key of a session. tokens: of its one row, or of the longest, 0 for any number. defers: it writes none
    of its rows' states."""

    form: PagedForm
    neighbours: bool
    tokens: int = 0
    defers: bool = False


# Minimum tokens of a row with draft tokens.
_DEFERRING = SessionKey(PagedForm.ONE_ROW, True, 2, defers=True)


class OnnxRuntimePagedEngine(PagedArrayEngine):
    """Runs a paged artifact with ONNX Runtime's CPU provider.

    A step becomes one run of all rows with one token, and one run for all longer rows in neighbouring slots; where the
    graph has other operators than those of the library, each longer row has its own. Rows with draft tokens share one
    run with those of one token. All sessions share one set of weights and the pools. The sessions for one token of each
    of several rows with contiguous slots and for longer rows are created at once; those for a single token, for slots
    with gaps, for each number of draft tokens of a single row and for rows with draft tokens on first use. Each session
    packs quantised weights for itself: of a large quantised model, the session for one row runs its single tokens too,
    and the others are created on first use.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        graphs: GraphCache | None = None,
        exact_products: bool = False,
    ) -> None:
        """Load the artifact in ``folder``; ``threads`` defaults to the CPUs that this process may use.

        graphs: cache of rewritten graphs for later starts; None rewrites them each time. exact_products: as in
        EngineOptions.
        ArtifactError when the folder is not a complete artifact, EngineError when ONNX Runtime refuses it.
        """
        super().__init__(folder)
        self._threads = threads or available_cpus()
        self._graphs, self._exact = graphs, exact_products
        self._weights = WeightStore(self._folder)
        self._kv_shapes = tuple(
            dict.fromkeys(
                KvShape(layer.num_kv_heads, layer.sliding_window or 0, layer.parts) for layer in self.config.kv_layers
            )
        )
        self._deferred: DeferredStates | None = None
        self._snapshots: frozenset[str] = frozenset()
        self._packs_weights = False
        self._prepared = PreparedSteps(self._kv_shapes)
        # Sessions of ``step_values``, and the names and sizes of the values that they give.
        self._value_sessions: dict[SessionKey, PagedSession] = {}
        self._value_sizes: dict[str, int] = {}
        key = SessionKey(PagedForm.ONE_ROW, neighbours=True)
        graph = self._graph(key)  # the same whether the session packs its weights or not
        self._packs_weights = graph.float32_bytes <= _MOST_PACKED_BYTES
        self._layouts, self._operators = graph.layouts, frozenset(graph.operators)
        self._replayable = frozenset(name for name, replayable in graph.operators.items() if replayable)
        # Operators with a state after each token of deferred rows, and how many tokens these may have.
        self._snapshots, self._deferred_tokens = self._operators - self._replayable, MOST_REPLAYED
        self._sessions = {key: self._created(key, graph)}
        self._takes_checkpoints = self._sessions[key].takes_checkpoints
        self._joins_rows = ROW_STARTS in self._sessions[key].inputs
        self.notes = (*graph.rounding_notes(exact_products), *library_notes(graph))
        self._saves_sessions = graph.block_bytes > MOST_BLOCK_BYTES
        if not self._saves_sessions:
            self._session(SessionKey(PagedForm.TOKEN_PER_ROW, neighbours=True))

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._prepared.forget()
        super().allocate_pools(sizes)
        for session in (*self._sessions.values(), *self._value_sessions.values()):
            session.bind(self.pools)
        if self._deferred is not None:
            self._deferred.bind(self.pools)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        if self._shown:
            self._prepared.forget_last()
        elif (again := self._prepared.repeat(inputs)) is not None:
            return again
        pools, deferred = self.pools, inputs.deferred
        if len(inputs.seq_lens) == 1 and not self._shown:
            if self._deferred is not None:
                self._deferred.rollback.forget()
            if (found := self._prepared.like(inputs)) is not None:
                return found
        check_packed(inputs, self.limits, self.config, pools.sizes, self._deferred_tokens, self._takes_checkpoints)
        if self._deferred is not None:
            self._deferred.rollback.forget()
        if self._kv_shapes and (begun := begun_blocks(inputs, pools.sizes.block_size)).size:
            pools.zero_blocks(begun.tolist())
        logits = np.zeros((len(inputs.logits_indices), self.config.vocab_size), np.float32)
        place = np.full(len(inputs.input_ids), -1, np.int32)
        alone = () if deferred is None else np.flatnonzero(deferred).tolist()
        for unordered in paged_runs(inputs, alone, self._together(inputs, deferred), self._joins_rows):
            run, slots = by_slot(unordered, inputs, pools.sizes.num_slots)
            place[run.tokens] = np.arange(len(run.tokens), dtype=np.int32)
            requested = np.flatnonzero(place[inputs.logits_indices] >= 0)
            part = logits if len(requested) == len(logits) else np.zeros((len(requested), logits.shape[1]), np.float32)
            session, batch = self._run(inputs, run, slots, place[inputs.logits_indices[requested]], part)
            if part is not logits:
                logits[requested] = part
            place[run.tokens] = -1
            if not self._more_feeds(inputs, run):
                states = None if batch is None or self._deferred is None else (self._deferred, batch)
                self._prepared.remember(inputs, run, session, logits, super().pools, states)
        return logits

    @property
    def takes_checkpoints(self) -> bool:
        return self._takes_checkpoints

    @property
    def shows_values(self) -> bool:
        return True

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        from hybridge.runtime.engines.inner_values import value_sizes

        if set(values) != self._value_sizes.keys():
            self._value_sizes, self._value_sessions = value_sizes(self._read_model().graph, values), {}
        tokens = len(inputs.input_ids)
        shown = {name: np.zeros((tokens, size), np.float32) for name, size in self._value_sizes.items()}
        plain = self._shown, self._sessions
        self._shown, self._sessions = shown, self._value_sessions
        try:
            return {LOGITS: self.step(inputs), **shown}
        finally:
            self._shown, self._sessions = plain

    def padded_blocks(self, blocks: int) -> int:
        return -(-blocks // _TABLE_COLUMNS) * _TABLE_COLUMNS

    @property
    def pools(self) -> ArrayPools:
        """Rows that shared a run with deferred ones advance with these, or before anything else is done."""
        if self._deferred is not None:
            self._deferred.rollback.settle()
        return super().pools

    @property
    def max_rollback_tokens(self) -> int:
        return _MOST_DEFERRED if self._operators else 0

    @property
    def rollback_token_bytes(self) -> int:
        return self._deferred_states(self._session(_DEFERRING)).token_bytes if self._operators else 0

    @property
    def rollback_modes(self) -> Mapping[str, str]:
        return {name: SNAPSHOT if name in self._snapshots else REPLAY for name in sorted(self._operators)}

    def prepare_rollback(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        replayable = self._replayable if tokens <= MOST_REPLAYED else frozenset[str]()
        self._use_snapshots(self._operators - replayable)
        chosen = chosen_modes({state.op: state.cost for state in self._session(_DEFERRING).deferred}, mode)
        self._use_snapshots(frozenset(name for name, mode in chosen.items() if mode == SNAPSHOT))
        self._deferred_tokens, self._pools = tokens, None
        self._prepared.forget()

    def advance(self, accepted: np.ndarray) -> None:
        if self._deferred is not None:
            self._deferred.rollback.advance(accepted.tolist())

    def memory_use(self) -> Mapping[str, int]:
        found = {"weights": self._weights.copied_bytes, "weights mapped from files": self._weights.mapped_bytes}
        packed = sum(self._packs(key) for key in self._sessions)
        return found | ({"weights packed for several tokens": packed * self._weights.bytes} if packed else {})

    def close(self) -> None:
        self._weights.close()
        self._prepared.forget()
        self._sessions.clear()
        self._value_sessions.clear()

    def _show(self, hidden: np.ndarray) -> None:
        super()._show(hidden)
        self._prepared.forget()
        self._sessions.clear()

    def _run(
        self,
        inputs: PackedInputs,
        run: PagedRun,
        slots: slice,
        indices: np.ndarray,
        logits: np.ndarray,
    ) -> tuple[PagedSession, DeferredBatch | None]:
        """Run some rows of a step, whose states are within ``slots``; returns the session that did, and the rows'
        deferred states.

        ``logits`` [m, vocab] receives those of the tokens ``indices`` [m] of the run.
        """
        # Not self.pools: rows deferred by an earlier run of this step wait for its end.
        sizes, deferred = super().pools.sizes, inputs.deferred

        def feeds(session: PagedSession) -> Mapping[str, np.ndarray]:
            known = run_feeds(inputs, run, self._kv_shapes, sizes, session.inputs)
            return {**known, **self._more_feeds(inputs, run)}

        batch = None
        shown = {name: np.empty((len(run.tokens), own.shape[1]), np.float32) for name, own in self._shown.items()}
        if deferred is not None and (waits := deferred[run.rows]).any():
            # The body for snapshots is made for a number of tokens.
            tokens = 0 if run.is_ragged and not self._snapshots else run.time
            form = PagedForm.RAGGED if run.is_ragged else PagedForm.ONE_ROW
            session = self._session(SessionKey(form, True, tokens, defers=True))
            states = self._deferred_states(session)
            batch = states.batch(len(deferred), run.rows, inputs.state_indices[run.rows], run.counts, waits)
            session.run(feeds(session), indices, logits, slots, batch, shown)
            states.ran(batch)
        else:
            neighbours = slots.stop - slots.start == len(run.rows) or not self.config.recurrent_layers
            tokens = run.time if self._has_drafts(run, len(indices)) else 0
            form = _form(run)
            if form is PagedForm.ONE_TOKEN and self._saves_sessions:
                form = PagedForm.ONE_ROW
            session = self._session(SessionKey(form, neighbours, tokens))
            checkpoints = NO_CHECKPOINTS if inputs.checkpoints is None else _row_checkpoints(inputs.checkpoints, run)
            session.run(feeds(session), indices, logits, slots, shown=shown, checkpoints=checkpoints)
        for name, values in self._shown.items():
            values[run.tokens] = shown[name]
        return session, batch

    def _more_feeds(self, inputs: PackedInputs, run: PagedRun) -> Mapping[str, np.ndarray]:
        """Inputs of the graph of ``run`` in addition to those of every paged graph."""
        return {}

    def _pool_layouts(self) -> Mapping[str, tuple[int, ...]]:
        return self._layouts

    def _snapshot_slots(self) -> Mapping[str, int]:
        if not self._snapshots:
            return {}
        # Rows of one token share the run of deferred rows.
        slots = self.limits.max_rows * self._deferred_tokens
        states = [state for state in self._session(_DEFERRING).deferred if state.is_snapshot]
        return {pool.name: slots for state in states for pool in state.pools}

    def _deferred_states(self, session: PagedSession) -> DeferredStates:
        """The deferred rows of steps that ``session``, or another one that defers states, runs."""
        if self._deferred is None:
            from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredStates

            self._deferred = DeferredStates(session.deferred, self._folder, self._threads)
            if self._pools is not None:
                self._deferred.bind(self._pools)
        return self._deferred

    def _use_snapshots(self, operators: frozenset[str]) -> None:
        if operators != self._snapshots:
            self._snapshots, self._deferred = operators, None
            self._sessions = {key: session for key, session in self._sessions.items() if not key.defers}
            self._value_sessions = {}

    def _session(self, key: SessionKey) -> PagedSession:
        if key not in self._sessions:
            graph = self._graph(key)
            if graph.layouts != self._layouts:
                raise EngineError(f"{self._folder}: the graph forms disagree about the layout of pools")
            self._sessions[key] = self._created(key, graph)
            if self._pools is not None:
                self._sessions[key].bind(self._pools)
        return self._sessions[key]

    def _created(self, key: SessionKey, graph: PagedGraph) -> PagedSession:
        # Steps have every size: a memory plan would never be reused.
        session = create_session(graph, self._weights, self._folder, self._threads, self._packs(key))
        return PagedSession(session, graph, self._replaced_by)

    def _graph(self, key: SessionKey) -> PagedGraph:
        if self._graphs is None or key.defers:
            graph = self._rewritten(key)
        else:
            settings = f"{key.neighbours} {key.tokens} {self._packs(key)} {self._exact}"
            form = f"{key.form.name} {settings} {' '.join(self._shown)}"
            graph = self._graphs.get(self._folder, form, lambda: self._rewritten(key))
        self._opened.check()
        return graph

    def _rewritten(self, key: SessionKey) -> PagedGraph:
        from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
        from hybridge.runtime.engines.onnxruntime.paged_rewrite import rewrite_paged
        from hybridge.runtime.engines.onnxruntime.replay_bodies import recurrent_nodes, replayable_operators

        model = self._read_model()
        # Read from the file as it is: rewriting replaces the operators.
        replayable = replayable_operators(model)
        operators = {node.op_type: node.op_type in replayable for node in recurrent_nodes(model)}
        graph = rewrite_paged(
            model,
            self.config,
            key.form,
            installed_kernels(),
            key.neighbours,
            key.tokens,
            self._packs(key),
            key.defers,
            tuple(self._shown),
            self._snapshots,
            self._exact,
        )
        return graph.serialised(operators)

    def _together(self, inputs: PackedInputs, deferred: np.ndarray | None) -> list[int]:
        """The rows that share a run with draft tokens: those that have some, and those of one token."""
        counts = np.diff(inputs.query_start_loc)
        if self.config.recurrent_layers:
            if deferred is None:
                return []
            several = deferred
        else:
            requested = np.zeros(len(inputs.input_ids) + 1, np.int32)
            requested[1:][inputs.logits_indices] = 1
            found = np.diff(np.cumsum(requested)[inputs.query_start_loc])
            several = (counts > 1) & (counts <= _MOST_TRIED) & (found == counts)
        if not several.any():
            return []
        rows: list[int] = np.flatnonzero((inputs.seq_lens > 0) & (several | (counts == 1))).tolist()
        return rows

    def _has_drafts(self, run: PagedRun, requested: int) -> bool:
        """Whether the tokens are draft tokens of a model without states: all of their logits are requested."""
        is_one = not self.config.recurrent_layers and len(run.rows) == 1
        return is_one and 1 < run.time == requested <= _MOST_TRIED

    def _packs(self, key: SessionKey) -> bool:
        return self._packs_weights and (key.tokens > 1 or key.form is not PagedForm.ONE_TOKEN)


def _row_checkpoints(checkpoints: np.ndarray, run: PagedRun) -> RowCheckpoints:
    """The states of ``checkpoints`` [n, 2] that are those of the tokens of ``run``."""
    if run.time == 1 or len(run.rows) > 1:
        return NO_CHECKPOINTS
    mine = checkpoints[(checkpoints[:, 0] >= run.tokens[0]) & (checkpoints[:, 0] < run.tokens[-1])]
    return RowCheckpoints((mine[:, 0] - run.tokens[0] + 1).astype(np.int32), mine[:, 1])


def _form(run: PagedRun) -> PagedForm:
    if run.is_ragged:
        return PagedForm.RAGGED
    if run.time > 1:
        return PagedForm.ONE_ROW
    return PagedForm.ONE_TOKEN if len(run.rows) == 1 else PagedForm.TOKEN_PER_ROW
