"""Bindings and limits of a paged engine, on which config.json, engine.json and the engine must agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hybridge.artifact import names
from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS, Binding, GraphBindings
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import EngineRecord, ProfileRecord
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.binding_check import (
    AGAIN,
    StateBinding,
    check_bindings,
    checked_profiles,
    recorded_binding,
    state_binding,
)
from hybridge.runtime.engines.tensorrt.engine_tensors import EngineTensor
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize
from hybridge.trt_plugins.build.profiles import DECODE, PAGED_BLOCK_SIZE, PREFILL
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm, exported_head

FIXED = {BLOCK_SIZE: PAGED_BLOCK_SIZE}
# How the outputs begin that a replay needs.
STORED = "stored_"


@dataclass(frozen=True)
class StepBindings:
    """Everything that a step binds, and what the profiles allow.

    graph: its inputs and outputs, those of config.json with the slots for draft tokens. stored: outputs that the
    advance engine reads. profiles: index by name. largest: the largest step of rows of any lengths. row_tokens: tokens
    of a row, its own and the draft tokens, in a captured step. buckets: numbers of rows of captured steps, ascending.
    num_blocks, num_slots: of the largest pools. num_hidden: rows of hidden states that a head may read.
    """

    graph: GraphBindings
    pools: tuple[StateBinding, ...]
    logits: Binding
    stored: tuple[Binding, ...]
    profiles: Mapping[str, int]
    largest: StepSize
    row_tokens: int
    buckets: tuple[int, ...]
    num_blocks: int
    num_slots: int
    num_hidden: int
    vocab_size: int

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """The inputs of a step that the host gives."""
        return tuple(b for b in self.graph.inputs if not b.is_state and b.name != names.HIDDEN_ROWS)

    @property
    def hidden(self) -> HiddenForm:
        """What the engine does with hidden states."""
        return _hidden_form(self.graph)

    @property
    def hidden_row_bytes(self) -> int:
        """Bytes of the hidden states of a token, in an engine that has them."""
        found = next(b for b in self.graph.outputs if b.name in (names.HIDDEN_STATES, names.OWN_HIDDEN_STATES))
        return int(found.shape[-1]) * found.dtype.itemsize

    @property
    def drafts(self) -> bool:
        """Whether rows have several slots, for draft tokens."""
        return any(binding.name == names.NUM_ACCEPTED_TOKENS for binding in self.inputs)

    @property
    def chains(self) -> bool:
        """Whether steps can be launched ahead: a row has one slot, which the kernel that feeds rows may change."""
        return not self.drafts

    @property
    def takes_turns(self) -> bool:
        """Whether some pool has a second buffer, so that the two swap roles after each step."""
        return any(not pool.aliased for pool in self.pools)

    @property
    def decode_size(self) -> StepSize:
        """The largest captured step of rows with one token each."""
        rows = self.buckets[-1]
        return StepSize(rows, rows, self.largest.blocks, rows)

    @property
    def row_logits(self) -> int:
        """Logits of a row in a captured step: of all its tokens, or in a head of the last one."""
        return 1 if self.hidden is HiddenForm.READ else self.row_tokens

    @property
    def draft_size(self) -> StepSize:
        """The largest captured step of rows with draft tokens; its last row is padding."""
        rows = self.buckets[-1]
        return StepSize(rows * self.row_tokens + 1, rows + 1, self.largest.blocks, rows * self.row_logits)

    @property
    def largest_sizes(self) -> tuple[StepSize, ...]:
        """Sizes of which each input is largest in one."""
        return (self.largest, self.draft_size) if self.row_tokens > 1 else (self.largest,)

    @property
    def sampled_rows(self) -> tuple[int, ...]:
        """Numbers of rows of logits of captured steps, ascending: sampling kernels are made for these."""
        return tuple(sorted({*self.buckets, *(rows * self.row_logits for rows in self.buckets)}))

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest step, padding included."""
        return max(size.tokens for size in self.largest_sizes)

    def stored_bytes(self, binding: Binding) -> int:
        """Bytes of one stored output in the largest step."""
        return math.prod(binding.resolve(**self.largest.axes)) * binding.dtype.itemsize


def step_bindings(config: RuntimeConfig, record: EngineRecord, tensors: Mapping[str, EngineTensor]) -> StepBindings:
    """The bindings of the engine with ``tensors``; EngineError naming the first disagreement between the three."""
    drafts = record.speculative_tokens if config.recurrent_layers else 0
    recorded = recorded_bindings(record)
    config = exported_head(config) if recorded.hidden is HiddenForm.READ else config
    graph = config.bindings
    if drafts:
        graph = DraftSlots(drafts, record.advance is not None).bindings(graph)
    graph = recorded.hidden.config(replace(config, bindings=graph)).bindings
    declared = {binding.name for binding in (*graph.inputs, *graph.outputs)}
    stored = tuple(b for b in recorded.graph.outputs if b.name not in declared) if record.advance is not None else ()
    check_bindings(graph.inputs, (*graph.outputs, *stored), FIXED, record, tensors)
    checked_profiles((PREFILL, DECODE), record, tensors)
    aliases = {entry["name"]: entry.get("aliases") for entry in record.bindings}
    pools = [
        state_binding(spec, aliases[str(spec.replaced_by)], tensors[str(spec.replaced_by)].alias)
        for spec in graph.states
    ]
    return replace(recorded, graph=graph, pools=tuple(pools), logits=config.result, stored=stored)


def recorded_bindings(record: EngineRecord) -> StepBindings:
    """The bindings of a paged engine as engine.json has them, unchecked; EngineError where something is missing."""
    aliases = {entry["name"] for entry in record.bindings if "aliases" in entry}
    try:
        inputs = tuple(recorded_binding(entry) for entry in record.bindings if entry["mode"] == "input")
        outputs = tuple(recorded_binding(entry) for entry in record.bindings if entry["mode"] == "output")
        states = tuple(binding for binding in inputs if binding.is_state)
        logits = next(binding for binding in outputs if binding.name == names.LOGITS)
        prefill = next(profile for profile in record.profiles if profile.name == PREFILL)
        return StepBindings(
            graph=GraphBindings(inputs, outputs),
            pools=tuple(StateBinding(s, str(s.replaced_by), str(s.replaced_by) in aliases) for s in states),
            logits=logits,
            stored=tuple(b for b in outputs if b.name.startswith(STORED)),
            profiles={profile.name: index for index, profile in enumerate(record.profiles)},
            largest=_largest(prefill),
            row_tokens=1 + record.speculative_tokens,
            buckets=_buckets(record),
            num_blocks=_most(states, NUM_BLOCKS, prefill),
            num_slots=_most(states, NUM_SLOTS, prefill),
            num_hidden=_most_hidden(prefill),
            vocab_size=int(logits.shape[-1]),
        )
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise EngineError(f"engine.json: expected a paged engine's bindings, found some missing: {AGAIN}") from error


def engine_config(config: RuntimeConfig, record: EngineRecord) -> RuntimeConfig:
    """``config`` with the limits of the engine."""
    rows, positions = record.max_batch_size, record.max_seq_len
    if rows > config.max_batch_size or positions > config.max_seq_len:
        raise EngineError(
            f"engine.json: expected at most {config.max_batch_size} rows of {config.max_seq_len} tokens, as the "
            f"artifact has, found {rows} of {positions}: {AGAIN}"
        )
    return replace(config, max_batch_size=rows, max_seq_len=positions)


def _hidden_form(graph: GraphBindings) -> HiddenForm:
    if any(binding.name == names.HIDDEN_ROWS for binding in graph.inputs):
        return HiddenForm.READ
    shows = any(binding.name == names.HIDDEN_STATES for binding in graph.outputs)
    return HiddenForm.SHOWN if shows else HiddenForm.NONE


def _most_hidden(prefill: ProfileRecord) -> int:
    """Rows of hidden states that a step may read; 0 in an engine that reads none."""
    return int(prefill.shapes[names.HIDDEN_ROWS][-1][0]) if names.HIDDEN_ROWS in prefill.shapes else 0


def _largest(prefill: ProfileRecord) -> StepSize:
    shapes = {name: ranges[-1] for name, ranges in prefill.shapes.items()}
    rows, blocks = shapes[names.BLOCK_TABLE]
    return StepSize(shapes[names.INPUT_IDS][0], rows, blocks, shapes[names.LOGITS_INDICES][0])


def _buckets(record: EngineRecord) -> tuple[int, ...]:
    buckets = tuple(record.row_buckets)
    if not buckets or buckets[-1] != record.max_batch_size:
        raise EngineError(
            f"engine.json: expected row_buckets up to the {record.max_batch_size} rows of the engine, found "
            f"{list(buckets)}: {AGAIN}"
        )
    return buckets


def _most(pools: tuple[Binding, ...], axis: str, profile: ProfileRecord) -> int:
    """The largest size of ``axis``; 0 if no pool has this axis."""
    return min((profile.shapes[b.name][-1][b.shape.index(axis)] for b in pools if axis in b.shape), default=0)
