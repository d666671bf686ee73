"""A graph with draft tokens as two: one that checks them and holds the states, one that advances the states.

A check whose rows have their slots in a column that no token writes leaves the states as they are. What the recurrent
operators read of each token becomes outputs of its graph. The other graph is these operators alone, over what was kept:
a row over the same tokens, with its slot in the column of the last accepted one, and -1 in the others, reads the state
and writes the one after that token over it (docs/explanation/speculation.md, Replay).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx.utils import Extractor

from hybridge.artifact import names
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.specs.packed import is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import is_speculative
from hybridge.trt_plugins.value_types import domain_version

_ROW_INPUTS = (names.QUERY_START_LOC, names.STATE_INDICES, names.NUM_ACCEPTED_TOKENS)


@dataclass(frozen=True)
class HeldStates:
    """check: the graph, whose last outputs are ``held``. advance: its inputs are those about rows, ``held`` and pools.

    held: "held_<pool>_<input of the operator>", each [tokens, ...].
    """

    check: onnx.ModelProto
    advance: onnx.ModelProto
    held: tuple[str, ...]


def held_states(model: onnx.ModelProto) -> HeldStates:
    """``model`` as a check and an advance; ``state_indices`` has one more column, so that a full row has a free one.

    UnsupportedError where no operator keeps states of draft tokens.
    """
    copy, version = ir.from_proto(model), domain_version(model)
    operators = [(node, spec_of(node.op_type, version)) for node in copy.graph if node.domain == DOMAIN]
    recurrent = [(node, spec) for node, spec in operators if is_speculative(spec)]
    if not recurrent:
        raise UnsupportedError(
            "expected operators over draft tokens, whose states can be held, found none: export with "
            "`layout='paged'` and `speculative_tokens=N`"
        )
    (slots,) = (value for value in copy.graph.inputs if value.name == names.STATE_INDICES)
    assert slots.shape is not None
    rows, columns = slots.shape
    assert isinstance(columns, int), columns
    slots.shape = ir.Shape([rows, columns + 1])
    held: list[str] = []
    pools: dict[str, str] = {}
    for node, spec in recurrent:
        arguments = list(zip(spec.inputs, node.inputs, strict=True))
        (pool,) = (str(value.name) for tensor, value in arguments if is_pool(tensor) and value is not None)
        (output,) = (value for tensor, value in zip(spec.outputs, node.outputs, strict=True) if is_pool(tensor))
        pools[pool] = str(output.name)
        for tensor, value in arguments:
            if value is not None and is_packed(tensor) and value.name not in held:
                assert value.producer() is not None and not value.is_graph_output(), value.name
                value.name = f"held_{pool}_{tensor.name}"
                copy.graph.outputs.append(value)
                held.append(value.name)
    check = ir.to_proto(copy)
    advance = Extractor(check).extract_model([*_ROW_INPUTS, *held, *pools], list(pools.values()))
    advance.graph.name = "advance"
    return HeldStates(check, advance, tuple(held))
