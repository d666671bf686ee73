"""The ONNX Runtime engine for paged artifacts: packed steps on the CPU, in float32, pools updated in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.held_modes import AUTO, REPLAY, SNAPSHOT, chosen_modes
from hybridge.runtime.engines.onnxruntime.engine import available_cpus
from hybridge.runtime.engines.onnxruntime.graph_weights import serialised_model
from hybridge.runtime.engines.onnxruntime.held_rows import HeldRows
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.paged_array_engine import PagedArrayEngine
from hybridge.runtime.engines.onnxruntime.paged_attention import KvShape
from hybridge.runtime.engines.onnxruntime.paged_candidates import candidate_step
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun, begun_blocks, by_slot, paged_runs, run_feeds
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_rewrite import PagedGraph, rewrite_paged
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.onnxruntime.replay_bodies import replays_all
from hybridge.runtime.engines.onnxruntime.replay_rows import MOST_REPLAYED
from hybridge.runtime.engines.onnxruntime.session import create_session
from hybridge.runtime.engines.onnxruntime.session_graph import SessionGraph
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.paged import PackedInputs, PoolSizes

# Weights up to so many bytes are packed anew for each kind of step with several tokens, which then takes three
# quarters of the time, and half of it with a few candidate tokens.
_MOST_PACKED_BYTES = 32 << 20
# Tokens of a row for which a model without states gets a session of its own; the others count theirs.
_MOST_TRIED = 8
_NOTHING_KEPT: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class SessionKey(NamedTuple):
    """What a session is made for. candidates: tokens of its one row, or of the longest, 0 for any number. holds: of
    whose states none is written."""

    form: PagedForm
    neighbours: bool
    candidates: int = 0
    holds: bool = False


# Of the fewest tokens that a row with candidates has.
_HOLDING = SessionKey(PagedForm.ONE_ROW, True, 2, holds=True)


class OnnxRuntimePagedEngine(PagedArrayEngine):
    """Runs a paged artifact with ONNX Runtime's CPU provider.

    A step becomes one run of all rows with one token, and one run for each longer row. Rows of candidate tokens whose
    states wait, or of a model without states, share one run with those of one token. All sessions share one set of
    weights and the pools. The sessions for one token of each of several rows with neighbouring slots and for longer
    rows are created at once, those for a single token, for slots with gaps between, for each number of candidate
    tokens of a single row and for rows with candidates at their first use.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; ``threads`` defaults to the CPUs that this process may use.

        ArtifactError when the folder is not a complete artifact, EngineError when ONNX Runtime refuses it.
        """
        super().__init__(folder)
        self._threads = threads or available_cpus()
        model = self._read_model()
        self._weights = WeightStore(self._folder)
        self._kv_shapes = tuple(
            dict.fromkeys(KvShape(layer.num_kv_heads, layer.sliding_window or 0) for layer in self.config.kv_layers)
        )
        # Read from the file as it is: what graphs are rewritten to does not tell.
        self._most_held = MOST_REPLAYED if self.config.recurrent_layers and replays_all(model) else 0
        self._sessions: dict[SessionKey, PagedSession] = {}
        self._held: HeldRows | None = None
        # Of which rows that are held keep the state after each token.
        self._kept_operators: frozenset[str] = frozenset()
        self._layouts = self._open(SessionKey(PagedForm.ONE_ROW, neighbours=True)).layouts
        self._session(SessionKey(PagedForm.TOKEN_PER_ROW, neighbours=True))

    def allocate_pools(self, sizes: PoolSizes) -> None:
        super().allocate_pools(sizes)
        for session in self._sessions.values():
            session.bind(self.pools)
        if self._held is not None:
            self._held.bind(self.pools)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        check_packed(inputs, self.limits, self.config, self.pools.sizes, self.most_held_tokens)
        pools, kept = self.pools, _NOTHING_KEPT
        if inputs.num_accepted_tokens is not None:
            found = candidate_step(inputs, pools.sizes.num_slots)
            inputs, kept = found.inputs, found.kept
            pools.copy_slots(found.sources.tolist(), found.targets.tolist())
        held = inputs.held
        if self._held is not None:
            self._held.forget()
        if self._kv_shapes and (begun := begun_blocks(inputs, pools.sizes.block_size)).size:
            pools.zero_blocks(begun.tolist())
        logits = np.zeros((len(inputs.logits_indices), self.config.vocab_size), np.float32)
        place = np.full(len(inputs.input_ids), -1, np.int32)
        alone = (*kept, *(() if held is None else np.flatnonzero(held).tolist()))
        for unordered in paged_runs(inputs, alone, self._together(inputs, held)):
            run, slots = by_slot(unordered, inputs, pools.sizes.num_slots)
            place[run.tokens] = np.arange(len(run.tokens), dtype=np.int32)
            wanted = np.flatnonzero(place[inputs.logits_indices] >= 0)
            part = logits if len(wanted) == len(logits) else np.zeros((len(wanted), logits.shape[1]), np.float32)
            self._run(inputs, run, slots, place[inputs.logits_indices[wanted]], part, kept)
            if part is not logits:
                logits[wanted] = part
            place[run.tokens] = -1
        return logits

    @property
    def pools(self) -> ArrayPools:
        """Rows that shared a run with held ones are advanced with these, or before anything else is done."""
        if self._held is not None:
            self._held.settle()
        return super().pools

    @property
    def most_held_tokens(self) -> int:
        return self._most_held

    @property
    def held_token_bytes(self) -> int:
        if self._held is None and self._most_held:
            self._held_rows(self._session(_HOLDING))
        return 0 if self._held is None else self._held.bytes_of_token

    @property
    def held_modes(self) -> Mapping[str, str]:
        if not self._most_held:
            return {}
        held = self._session(_HOLDING).held
        return {state.op: SNAPSHOT if state.is_kept else REPLAY for state in held}

    def prepare_held(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        self._keep(frozenset())
        costs = {state.op: state.cost for state in self._session(_HOLDING).held}
        chosen = chosen_modes(costs, mode)
        self._keep(frozenset(name for name, mode in chosen.items() if mode == SNAPSHOT))

    def advance(self, accepted: np.ndarray) -> None:
        if self._held is not None:
            self._held.advance(accepted)

    def held_memory(self) -> Mapping[str, int]:
        held = {"weights": self._weights.copied_bytes, "weights mapped from files": self._weights.mapped_bytes}
        packed = sum(self._packs(key) for key in self._sessions)
        return held | ({"weights packed for several tokens": packed * self._weights.bytes} if packed else {})

    def close(self) -> None:
        self._sessions.clear()

    def _show(self, hidden: np.ndarray) -> None:
        super()._show(hidden)
        self._sessions.clear()

    def _run(
        self,
        inputs: PackedInputs,
        run: PagedRun,
        slots: slice,
        places: np.ndarray,
        logits: np.ndarray,
        kept: Mapping[int, tuple[int, ...]],
    ) -> None:
        """Run some rows of a step, whose states are within ``slots``.

        ``logits`` [m, vocab] receives those of the tokens ``places`` [m] of the run. kept: by row of candidate tokens,
        the slots of the states after each of them.
        """
        # Not self.pools: rows that are held in a run before this one wait for the end of the step.
        sizes, held = super().pools.sizes, inputs.held
        feeds = {**run_feeds(inputs, run, self._kv_shapes, sizes), **self._more_feeds(inputs, run)}
        shown = {name: np.empty((len(run.tokens), self.config.hidden_size), np.float32) for name in self._shown}
        if held is not None and (waits := held[run.rows]).any():
            # The body for states that are kept is made for a number of tokens.
            tried = 0 if run.is_ragged and not self._kept_operators else run.time
            form = PagedForm.RAGGED if run.is_ragged else PagedForm.ONE_ROW
            session = self._session(SessionKey(form, True, tried, holds=True))
            held_rows = self._held_rows(session)
            batch = held_rows.batch(len(held), run.rows, inputs.state_indices[run.rows], run.counts, waits)
            session.run(feeds, places, logits, slots, held=batch, shown=shown)
            held_rows.ran(batch)
        else:
            neighbours = slots.stop - slots.start == len(run.rows) or not self.config.recurrent_layers
            written = kept.get(int(run.rows[0]), ())
            tried = len(written) or (run.time if self._tries(run, len(places)) else 0)
            session = self._session(SessionKey(_form(run), neighbours, tried))
            session.run(feeds, places, logits, slots, written, shown=shown)
        if self._hidden is not None:
            self._hidden[run.tokens] = shown[self._shown[0]]

    def _more_feeds(self, inputs: PackedInputs, run: PagedRun) -> Mapping[str, np.ndarray]:
        """What the graph of ``run`` reads beside what every paged graph does."""
        return {}

    def _pool_layouts(self) -> Mapping[str, tuple[int, ...]]:
        return self._layouts

    def _held_rows(self, session: PagedSession) -> HeldRows:
        """The rows of a step that ``session``, or another one that holds states, runs."""
        if self._held is None:
            self._held = HeldRows(session.held, self._folder, self._threads)
            if self._pools is not None:
                self._held.bind(self._pools)
        return self._held

    def _keep(self, operators: frozenset[str]) -> None:
        if operators != self._kept_operators:
            self._kept_operators, self._held = operators, None
            self._sessions = {key: session for key, session in self._sessions.items() if not key.holds}

    def _session(self, key: SessionKey) -> PagedSession:
        if key not in self._sessions:
            if self._open(key).layouts != self._layouts:
                raise EngineError(f"{self._folder}: the graph forms disagree about the layout of pools")
            if self._pools is not None:
                self._sessions[key].bind(self._pools)
        return self._sessions[key]

    def _open(self, key: SessionKey) -> PagedGraph:
        packs, model = self._packs(key), self._read_model()
        graph = rewrite_paged(
            model,
            self.config,
            key.form,
            installed_kernels(),
            key.neighbours,
            key.candidates,
            packs,
            key.holds,
            self._shown,
            self._kept_operators,
        )
        serialised = SessionGraph(*serialised_model(graph.model), graph.inputs, graph.in_place, {})
        # Steps of every size: a plan of memory for each would never be used again.
        session = create_session(serialised, self._weights, self._folder, self._threads, packs)
        self._sessions[key] = PagedSession(session, graph, self._replaced_by)
        return graph

    def _together(self, inputs: PackedInputs, held: np.ndarray | None) -> list[int]:
        """The rows that share a run with candidate tokens: those that have some, and those of one token."""
        counts = np.diff(inputs.query_start_loc)
        if self.config.recurrent_layers:
            if held is None:
                return []
            several = held
        else:
            wanted = np.zeros(len(inputs.input_ids) + 1, np.int32)
            wanted[1:][inputs.logits_indices] = 1
            found = np.diff(np.cumsum(wanted)[inputs.query_start_loc])
            several = (counts > 1) & (counts <= _MOST_TRIED) & (found == counts)
        if not several.any():
            return []
        rows: list[int] = np.flatnonzero((inputs.seq_lens > 0) & (several | (counts == 1))).tolist()
        return rows

    def _tries(self, run: PagedRun, wanted: int) -> bool:
        """Whether the tokens are candidates of a model that keeps no states: all of their logits are asked for."""
        is_one = not self.config.recurrent_layers and len(run.rows) == 1
        return is_one and 1 < run.time == wanted <= _MOST_TRIED

    def _packs(self, key: SessionKey) -> bool:
        several = key.candidates > 1 or key.form is not PagedForm.ONE_TOKEN
        return several and self._weights.bytes <= _MOST_PACKED_BYTES


def _form(run: PagedRun) -> PagedForm:
    if run.is_ragged:
        return PagedForm.RAGGED
    if run.time > 1:
        return PagedForm.ONE_ROW
    return PagedForm.ONE_TOKEN if len(run.rows) == 1 else PagedForm.TOKEN_PER_ROW
