"""Hidden states in device memory: a model's engine writes them, and that of its prediction head reads them by row.

Exported graphs keep a model's hidden states inside, and a head has them as an input [tokens, hidden]. An engine of a
model gets them as an output. An engine of a head gathers them from rows that the caller keeps, and gives its own for
the tokens that have logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

import onnx
from onnx import helper

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import (
    HIDDEN_ROWS,
    HIDDEN_SLOTS,
    HIDDEN_STATES,
    IS_OWN,
    LOGITS_INDICES,
    OWN_HIDDEN_STATES,
    layer_output,
)
from hybridge.artifact.paged import NUM_HIDDEN, NUM_LOGITS, TOKENS


class HiddenForm(Enum):
    """What an engine has to do with hidden states: nothing, to show those of its model, or to read them as a head."""

    NONE = "none"
    SHOWN = "shown"
    READ = "read"

    def config(self, config: RuntimeConfig) -> RuntimeConfig:
        """``config``, as ``exported_head`` or config.json has it, with the bindings of this form."""
        bindings, width = config.bindings, config.hidden_size
        if self is HiddenForm.SHOWN:
            shown = Binding(HIDDEN_STATES, config.dtype, (TOKENS, width))
            return replace(config, bindings=replace(bindings, outputs=(*bindings.outputs, shown)))
        if self is HiddenForm.READ:
            inputs = _replaced(bindings.inputs, _read_inputs(config))
            own = Binding(OWN_HIDDEN_STATES, config.dtype, (NUM_LOGITS, width))
            return replace(config, bindings=replace(bindings, inputs=inputs, outputs=(*bindings.outputs, own)))
        return config

    def rewrite(self, model: onnx.ModelProto, config: RuntimeConfig) -> None:
        """Give ``model``, whose last layer is the last one of ``config``, the bindings of this form, in place."""
        if self is HiddenForm.NONE:
            return
        last, graph, kind = layer_output(config.num_hidden_layers - 1), model.graph, config.dtype.onnx
        if not any(last in node.output for node in graph.node):
            raise EngineError(f"expected a value {last} in the graph, found none: export the checkpoint again")
        if self is HiddenForm.SHOWN:
            graph.node.append(helper.make_node("Cast", [last], [HIDDEN_STATES], f"{HIDDEN_STATES}.cast", to=kind))
            graph.output.append(_value(Binding(HIDDEN_STATES, config.dtype, (TOKENS, config.hidden_size))))
            return
        index = next(i for i, value in enumerate(graph.input) if value.name == HIDDEN_STATES)
        del graph.input[index]
        for offset, binding in enumerate(_read_inputs(config)):
            graph.input.insert(index + offset, _value(binding))
        gather = helper.make_node("Gather", [HIDDEN_ROWS, HIDDEN_SLOTS], [HIDDEN_STATES], f"{HIDDEN_STATES}.gather")
        graph.node.insert(0, gather)
        graph.value_info.append(_value(Binding(HIDDEN_STATES, config.dtype, (TOKENS, config.hidden_size))))
        chosen = f"{OWN_HIDDEN_STATES}.wide"
        graph.node.append(helper.make_node("Gather", [last, LOGITS_INDICES], [chosen], f"{OWN_HIDDEN_STATES}.gather"))
        graph.node.append(helper.make_node("Cast", [chosen], [OWN_HIDDEN_STATES], f"{OWN_HIDDEN_STATES}.cast", to=kind))
        graph.output.append(_value(Binding(OWN_HIDDEN_STATES, config.dtype, (NUM_LOGITS, config.hidden_size))))


def exported_head(config: RuntimeConfig) -> RuntimeConfig:
    """``config``, of mtp.json, with hidden_states [tokens, hidden] and is_own [tokens] before the pools."""
    bindings = config.bindings
    states = [binding.name for binding in bindings.states]
    rows = [binding for binding in bindings.inputs if binding.name not in states]
    own = [
        Binding(HIDDEN_STATES, config.dtype, (TOKENS, config.hidden_size)),
        Binding(IS_OWN, DType.INT32, (TOKENS,)),
    ]
    return replace(config, bindings=replace(bindings, inputs=(*rows, *own, *bindings.inputs[len(rows) :])))


def _read_inputs(config: RuntimeConfig) -> tuple[Binding, ...]:
    rows = Binding(HIDDEN_ROWS, config.dtype, (NUM_HIDDEN, config.hidden_size))
    return rows, Binding(HIDDEN_SLOTS, DType.INT64, (TOKENS,))


def _replaced(inputs: Sequence[Binding], read: Sequence[Binding]) -> tuple[Binding, ...]:
    index = next(i for i, binding in enumerate(inputs) if binding.name == HIDDEN_STATES)
    return (*inputs[:index], *read, *inputs[index + 1 :])


def _value(binding: Binding) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(binding.name, binding.dtype.onnx, list(binding.shape))
