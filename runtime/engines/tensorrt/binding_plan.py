"""Bindings of an engine's inputs and outputs, on which config.json, engine.json and the engine must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.bindings import BATCH, MAX_SEQ, SEQ, Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, HIDDEN_STATES, INPUT_IDS, LOGITS, PAST_LENGTHS
from hybridge.runtime.engines.tensorrt.binding_check import (
    AGAIN,
    StateBinding,
    check_bindings,
    check_names,
    checked_profiles,
    recorded_binding,
    state_binding,
)
from hybridge.runtime.engines.tensorrt.engine_tensors import EngineTensor

PREFILL, DECODE = "prefill", "decode"
STEP_INPUTS = (INPUT_IDS, CONTEXT_LENGTHS, PAST_LENGTHS)


@dataclass(frozen=True)
class BindingPlan:
    """Everything that is bound, and the limits of the engine.

    profiles: index of the optimization profile by name ("prefill", "decode").
    max_step_tokens: new tokens per row in one step. max_seq_len: positions of every KV cache.
    """

    inputs: tuple[Binding, ...]
    states: tuple[StateBinding, ...]
    logits: Binding
    profiles: Mapping[str, int]
    max_batch_size: int
    max_seq_len: int
    max_step_tokens: int

    @property
    def all_logits(self) -> bool:
        """Whether every token of a step has logits."""
        return SEQ in self.logits.shape

    @property
    def takes_turns(self) -> bool:
        """Whether some state has a second buffer, so that the two swap roles after each step."""
        return any(not state.aliased for state in self.states)

    def shapes(self, batch: int, tokens: int) -> dict[str, tuple[int, ...]]:
        """The shape of every input in a step of ``tokens`` per row."""
        return {b.name: self.shape(b, batch, tokens) for b in (*self.inputs, *(s.spec for s in self.states))}

    def shape(self, binding: Binding, batch: int, tokens: int = 1) -> tuple[int, ...]:
        """The shape of one binding in a step of ``tokens`` per row."""
        return binding.resolve(**{BATCH: batch, SEQ: tokens, MAX_SEQ: self.max_seq_len})

    def nbytes(self, binding: Binding, batch: int, tokens: int = 1) -> int:
        """Bytes of one binding in a step of ``tokens`` per row."""
        size = binding.dtype.itemsize
        for length in self.shape(binding, batch, tokens):
            size *= length
        return size


def binding_plan(config: RuntimeConfig, record: EngineRecord, tensors: Mapping[str, EngineTensor]) -> BindingPlan:
    """The plan of the engine with ``tensors``; EngineError naming the first disagreement between the three."""
    check_bindings(config.bindings.inputs, config.bindings.outputs, {MAX_SEQ: record.max_seq_len}, record, tensors)
    step_inputs = {*STEP_INPUTS, *(b.name for b in config.bindings.states)}
    check_names(step_inputs, {b.name for b in config.bindings.inputs}, "config.json")
    recorded = {entry["name"]: entry for entry in record.bindings}
    profiles = checked_profiles((PREFILL, DECODE), record, tensors)
    longest = _longest_step(record, PREFILL)
    if (most := _longest_step(record, DECODE)) != 1:
        raise EngineError(f"engine.json: expected the profile decode to take 1 token a row, found {most}: {AGAIN}")
    return BindingPlan(
        inputs=tuple(b for b in config.bindings.inputs if not b.is_state),
        states=tuple(
            state_binding(spec, recorded[str(spec.replaced_by)].get("aliases"), tensors[str(spec.replaced_by)].alias)
            for spec in config.bindings.states
        ),
        logits=config.result,
        profiles=profiles,
        max_batch_size=record.max_batch_size,
        max_seq_len=record.max_seq_len,
        max_step_tokens=longest,
    )


def samples(plan: BindingPlan) -> bool:
    """Whether kernels can sample tokens from what the engine gives: logits in float32."""
    return plan.logits.name == LOGITS and plan.logits.dtype is DType.FLOAT32


def recorded_plan(record: EngineRecord) -> BindingPlan:
    """The plan of a dense engine from engine.json, unchecked; EngineError where something is missing."""
    try:
        bindings = [recorded_binding(entry) for entry in record.bindings]
        aliased = {entry["name"] for entry in record.bindings if "aliases" in entry}
        inputs = [b for b, entry in zip(bindings, record.bindings, strict=True) if entry["mode"] == "input"]
        return BindingPlan(
            inputs=tuple(b for b in inputs if not b.is_state),
            states=tuple(
                StateBinding(b, str(b.replaced_by), str(b.replaced_by) in aliased) for b in inputs if b.is_state
            ),
            logits=next(b for b in bindings if b.name in (LOGITS, HIDDEN_STATES)),
            profiles={profile.name: index for index, profile in enumerate(record.profiles)},
            max_batch_size=record.max_batch_size,
            max_seq_len=record.max_seq_len,
            max_step_tokens=_longest_step(record, PREFILL),
        )
    except (KeyError, IndexError, StopIteration, TypeError, ValueError) as error:
        raise EngineError(f"engine.json: expected a dense engine's bindings, found some missing: {AGAIN}") from error


def _longest_step(record: EngineRecord, name: str) -> int:
    """The most tokens of a row in the profile ``name``."""
    shapes = next(profile.shapes for profile in record.profiles if profile.name == name)
    return int(shapes[INPUT_IDS][-1][1])
