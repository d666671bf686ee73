"""Mamba2 mixers in a graph: causal_conv1d, split, update_ssm_state and gate, which mamba2_conv_scan does in one.

    gate ------------------------------------------------------- [Cast] - Sigmoid -+
      |                                                             |              |
      |                                                             +---- Mul -----+
    conv_input - causal_conv1d - Split - 3 Reshape - update_ssm_state - Reshape - [Cast] - Mul - gated

Nothing else may read what is between convolution, scan and the last product: it would be lost. A mixer whose gate
comes after its norm has no gated value of this form and is not found.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.spec import AttributeValue
from hybridge.trt_plugins.specs.mamba2_conv_scan import group_count

CONV, SCAN = "causal_conv1d", "update_ssm_state"


@dataclass(frozen=True)
class Mamba2Mixer:
    """One mixer.

    conv, scan: its two operators. gate: what SiLU is taken of, in the type of the data.
    gated: y of the scan times SiLU(gate), [..., heads * head_dim], possibly in float32.
    nodes: all of the picture, readers before what they read; those around the gate may have other readers too.
    """

    conv: ir.Node
    scan: ir.Node
    gate: ir.Value
    gated: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def inputs(self) -> tuple[ir.Value | None, ...]:
        """Inputs of mamba2_conv_scan in its order."""
        conv_input, weight, bias, conv_state, *rows = self.conv.inputs
        A, D, dt, dt_bias, state = (self.scan.inputs[index] for index in (1, 4, 5, 6, 7))
        return conv_input, self.gate, dt, weight, bias, A, D, dt_bias, conv_state, state, *rows

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes of both operators, defaults filled in; their names differ."""
        return {**_complete(self.conv), **_complete(self.scan)}

    @property
    def state_outputs(self) -> tuple[ir.Value, ir.Value]:
        """conv_state_out and state_out."""
        return self.conv.outputs[1], self.scan.outputs[1]


def find_mixers(graph: ir.Graph) -> tuple[Mamba2Mixer, ...]:
    """Every mixer of ``graph`` that mamba2_conv_scan can take the place of, in graph order."""
    found = (_mixer(node) for node in graph if (node.domain, node.op_type) == (DOMAIN, SCAN))
    return tuple(mixer for mixer in found if mixer is not None)


def _mixer(scan: ir.Node) -> Mamba2Mixer | None:
    splitting = _split_channels(scan)
    gating = _gating(scan.outputs[0])
    if splitting is None or gating is None:
        return None
    conv, parts = splitting
    gate, gated, chain = gating
    if list(conv.inputs[4:]) != list(scan.inputs[8:]) or gated.dtype is None or not _sizes_agree(conv, scan, gate):
        return None
    return Mamba2Mixer(conv, scan, gate, gated, (*chain, scan, *parts, conv))


def _split_channels(scan: ir.Node) -> tuple[ir.Node, tuple[ir.Node, ...]] | None:
    """The convolution whose channels are x, B and C of ``scan``, and the nodes between the two."""
    reshapes = [_only_user(scan.inputs[index], "Reshape") for index in (0, 2, 3)]
    if any(node is None for node in reshapes):
        return None
    views = [node for node in reshapes if node is not None]
    pieces = [node.inputs[0] for node in views]
    split = pieces[0].producer() if pieces[0] is not None else None
    if split is None or split.op_type != "Split" or list(split.outputs) != pieces or not _on_last_axis(split):
        return None
    pairs = zip(pieces, views, strict=True)
    if not all(_used_once(piece) and _splits_last_axis(piece, view.outputs[0]) for piece, view in pairs):
        return None
    conv = _only_user(split.inputs[0], CONV)
    return None if conv is None or conv.domain != DOMAIN else (conv, (*views, split))


def _gating(y: ir.Value) -> tuple[ir.Value, ir.Value, tuple[ir.Node, ...]] | None:
    """Gate, gated value, and the nodes that make it of ``y`` [..., heads, head_dim], from the last to the first."""
    reshape = _only_reader(y, "Reshape")
    if reshape is None or not _splits_last_axis(reshape.outputs[0], y):
        return None
    chain = [reshape]
    wide = _only_reader(reshape.outputs[0], "Cast")
    if wide is not None:
        chain.append(wide)
    product = _only_reader(chain[-1].outputs[0], "Mul")
    if product is None:
        return None
    other = next((value for value in product.inputs if value is not chain[-1].outputs[0]), None)
    silu = _silu(other)
    if silu is None:
        return None
    gate, nodes = silu
    if wide is not None:
        cast = gate.producer()
        if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None:
            return None
        gate, nodes = cast.inputs[0], (*nodes, cast)
    return gate, product.outputs[0], (product, *nodes, *reversed(chain))


def _silu(value: ir.Value | None) -> tuple[ir.Value, tuple[ir.Node, ...]] | None:
    """v where ``value`` is v * sigmoid(v), and its nodes."""
    product = value.producer() if value is not None else None
    if product is None or product.op_type != "Mul":
        return None
    for of, factor in (product.inputs, reversed(product.inputs)):
        sigmoid = factor.producer() if factor is not None else None
        if of is not None and sigmoid is not None and sigmoid.op_type == "Sigmoid" and sigmoid.inputs[0] is of:
            return of, (product, sigmoid)
    return None


def _sizes_agree(conv: ir.Node, scan: ir.Node, gate: ir.Value) -> bool:
    """Whether gate and channels have the sizes that mamba2_conv_scan finds B and C by."""
    conv_input, state, B = conv.inputs[0], scan.inputs[7], scan.inputs[2]
    channels, inner, state_sizes, B_sizes = (_sizes(*item) for item in ((conv_input, 1), (gate, 1), (state, 3), (B, 2)))
    if not (channels and inner and state_sizes and B_sizes) or conv_input is None or gate.dtype != conv_input.dtype:
        return False
    if not _same(_outer(gate), _outer(conv_input)):
        return False
    heads, head_dim, state_size = state_sizes
    groups = group_count(channels[0], inner[0], state_size)
    return inner[0] == heads * head_dim and B_sizes == (groups, state_size)


def _sizes(value: ir.Value | None, count: int) -> tuple[int, ...]:
    """The last ``count`` sizes of ``value``; none where one of them is unknown."""
    if value is None or value.shape is None:
        return ()
    sizes = tuple(size for size in list(value.shape)[-count:] if isinstance(size, int))
    return sizes if len(sizes) == count else ()


def _outer(value: ir.Value) -> list[str]:
    """All sizes but the last as text, empty where one is unknown."""
    return [] if value.shape is None else ["" if _unknown(size) else str(size) for size in list(value.shape)[:-1]]


def _unknown(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and size.value is None


def _same(one: list[str], other: list[str]) -> bool:
    """Whether the sizes agree; unknown ones do not."""
    return one == other and all(one)


def _splits_last_axis(whole: ir.Value | None, split: ir.Value | None) -> bool:
    """Whether ``split`` [..., a, b] is ``whole`` [..., a * b] with its last axis in two."""
    one, two = _sizes(whole, 1), _sizes(split, 2)
    if whole is None or split is None or not (one and two):
        return False
    return _same(_outer(whole), _outer(split)[:-1]) and one[0] == two[0] * two[1]


def _on_last_axis(split: ir.Node) -> bool:
    whole, axis = split.inputs[0], split.attributes.get("axis")
    number = axis.as_int() if axis is not None else 0
    return number == -1 or (whole is not None and whole.shape is not None and number == len(whole.shape) - 1)


def _used_once(value: ir.Value | None) -> bool:
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def _only_user(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The producer of ``value``, a node of ``op_type``, where only one node reads the value."""
    if value is None or not _used_once(value):
        return None
    node = value.producer()
    return node if node is not None and node.op_type == op_type else None


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The one node that reads ``value``, of ``op_type``."""
    if not _used_once(value):
        return None
    node = next(iter(value.uses())).node
    return node if node.op_type == op_type else None


def _complete(node: ir.Node) -> dict[str, AttributeValue]:
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return spec_of(node.op_type).complete_attributes(given)
