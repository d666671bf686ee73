"""Inputs of a multi-token prediction head that no other graph of an artifact has."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import HIDDEN_STATES, IS_OWN
from hybridge.artifact.paged import TOKENS


def with_head_inputs(config: RuntimeConfig) -> RuntimeConfig:
    """``config``, of mtp.json, with hidden_states [tokens, hidden] and is_own [tokens] before the pools."""
    bindings = config.bindings
    states = [binding.name for binding in bindings.states]
    rows = [binding for binding in bindings.inputs if binding.name not in states]
    own = [
        Binding(HIDDEN_STATES, config.dtype, (TOKENS, config.hidden_size)),
        Binding(IS_OWN, DType.INT32, (TOKENS,)),
    ]
    return replace(config, bindings=replace(bindings, inputs=(*rows, *own, *bindings.inputs[len(rows) :])))
