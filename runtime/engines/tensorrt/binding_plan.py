"""Bindings of an engine's inputs and outputs, on which config.json, engine.json and the engine must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.bindings import BATCH, MAX_SEQ, SEQ, Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.tensorrt.engine_tensors import DYNAMIC, EngineTensor

PREFILL, DECODE = "prefill", "decode"
STEP_INPUTS = (INPUT_IDS, CONTEXT_LENGTHS, PAST_LENGTHS)
_AGAIN = "run hybridge build-engine again with --overwrite"


@dataclass(frozen=True)
class StateBinding:
    """One state: its graph input, the output that replaces it, and whether both are the same memory."""

    spec: Binding
    output: str
    aliased: bool


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
    declared = (*config.bindings.inputs, *config.bindings.outputs)
    recorded = {entry["name"]: entry for entry in record.bindings}
    for found, where in ((recorded, "engine.json"), (tensors, "the engine")):
        _check_names({b.name for b in declared}, set(found), where)
    inputs = {b.name for b in config.bindings.inputs}
    _check_names({*STEP_INPUTS, *(b.name for b in config.bindings.states)}, inputs, "config.json")
    for binding in declared:
        _check_record(binding, binding.name in inputs, record, recorded[binding.name])
        _check_tensor(binding, binding.name in inputs, record, tensors[binding.name])
    profiles = _profiles(record, tensors)
    longest = _longest_prefill(record)
    return BindingPlan(
        inputs=tuple(b for b in config.bindings.inputs if not b.is_state),
        states=tuple(
            _state(spec, recorded[str(spec.replaced_by)].get("aliases"), tensors[str(spec.replaced_by)].alias)
            for spec in config.bindings.states
        ),
        logits=config.result,
        profiles=profiles,
        max_batch_size=record.max_batch_size,
        max_seq_len=record.max_seq_len,
        max_step_tokens=longest,
    )


def _check_names(expected: set[str], found: set[str], where: str) -> None:
    if expected != found:
        missing = sorted(expected - found)
        text = f"no {missing[0]}" if missing else f"also {sorted(found - expected)[0]}"
        raise EngineError(f"{where}: expected the inputs and outputs of a step, found {text}: {_AGAIN}")


def _check_record(binding: Binding, is_input: bool, record: EngineRecord, entry: Mapping) -> None:
    shape = [record.max_seq_len if size == MAX_SEQ else size for size in binding.shape]
    expected = ("input" if is_input else "output", binding.dtype.value, shape, binding.replaced_by)
    found = (entry.get("mode"), entry.get("dtype"), entry.get("shape"), entry.get("replaced_by"))
    if expected != found:
        raise EngineError(f"engine.json: {binding.name}: expected {_text(expected)}, found {_text(found)}: {_AGAIN}")


def _check_tensor(binding: Binding, is_input: bool, record: EngineRecord, tensor: EngineTensor) -> None:
    shape = binding.resolve(**{BATCH: DYNAMIC, SEQ: DYNAMIC, MAX_SEQ: record.max_seq_len})
    found_shape = tensor.shape
    if not tensor.is_input and len(found_shape) == len(shape):
        # TensorRT infers the axes of outputs, and may know less about them or more.
        found_shape = tuple(e if DYNAMIC in (e, f) else f for e, f in zip(shape, found_shape, strict=True))
    expected = ("input" if is_input else "output", binding.dtype.value, shape)
    found = ("input" if tensor.is_input else "output", tensor.dtype.value, found_shape)
    if expected != found:
        raise EngineError(
            f"the engine's {binding.name}: expected {_text(expected)}, found {_text(found)}: it is not the engine that "
            f"engine.json describes: {_AGAIN}"
        )


def _profiles(record: EngineRecord, tensors: Mapping[str, EngineTensor]) -> dict[str, int]:
    indices = {profile.name: index for index, profile in enumerate(record.profiles)}
    if not {PREFILL, DECODE} <= set(indices):
        raise EngineError(f"engine.json: expected the profiles prefill and decode, found {sorted(indices)}: {_AGAIN}")
    for tensor in tensors.values():
        if not tensor.is_input:
            continue
        expected = tuple(
            tuple(tuple(shape) for shape in profile.shapes.get(tensor.name, ())) for profile in record.profiles
        )
        if tensor.profiles != expected:
            raise EngineError(
                f"the engine's {tensor.name}: expected the profiles {_text(expected)}, found "
                f"{_text(tensor.profiles)}: it is not the engine that engine.json describes: {_AGAIN}"
            )
    return indices


def _longest_prefill(record: EngineRecord) -> int:
    shapes = next(profile.shapes for profile in record.profiles if profile.name == PREFILL)
    return int(shapes[INPUT_IDS][-1][1])


def _state(spec: Binding, recorded: str | None, reported: str | None) -> StateBinding:
    """recorded, reported: the input that engine.json and the engine say the output shares its memory with.

    The engine knows of caches, engine.json also of plugins that update their state in place. Such a plugin works as
    well in two buffers, but TensorRT need not write the second one.
    """
    output = str(spec.replaced_by)
    for alias in (recorded, reported):
        if alias not in (None, spec.name):
            raise EngineError(f"expected {output} in the memory of {spec.name}, found it in that of {alias}: {_AGAIN}")
    return StateBinding(spec, output, recorded is not None or reported is not None)


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(item) for item in value)}]"
    return str(value)
