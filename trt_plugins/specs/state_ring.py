"""The form of a recurrent operator whose states have rings: a state is written once in RING tokens of a sequence.

It is the form of exported graphs: the ring of a row and its length are states beside the recurrent state, in padded
rows and in pools alike. Tokens one by one are added to the ring; a prompt writes them, and itself, into the state.
"""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_rings import RING_LENGTHS, RING_PREFIX
from hybridge.trt_plugins.spec import OpSpec, TensorSpec
from hybridge.trt_plugins.specs.ring import RING, RINGS
from hybridge.trt_plugins.specs.state_forms import SUFFIX_RING, base_name

STATE = "state"


def ring_form(spec: OpSpec) -> OpSpec:
    """``spec``, a dense operator of RINGS, with the ring of its state and the ring's length behind the state.

    A row that brings the only token of its row in this call (in padded rows: time is 1), and whose ring has fewer than
    RING - 1 tokens, adds its token to the ring; its state in memory does not change. Any other row with tokens has
    its ring and all its tokens written into the state, and its ring becomes empty. A row without tokens keeps state,
    ring and length bit for bit. What a ring has from its length on is never read, and an output keeps it.

    The speculative form adds no token to a ring: it first writes the ring of each state that a row reads into that
    state, and every state that it stores has an empty ring.
    """
    doc = f"{spec.doc} The last tokens (fewer than {RING}) are in a ring beside the state, which lacks them."
    return replace(
        spec,
        name=spec.name + SUFFIX_RING,
        doc=doc,
        inputs=tuple(tensor for given in spec.inputs for tensor in _with_ring(spec, given, "")),
        outputs=tuple(tensor for given in spec.outputs for tensor in _with_ring(spec, given, "_out")),
    )


def is_ring(spec: OpSpec) -> bool:
    """Whether ``spec`` is of that form."""
    return any(tensor.name == RING_LENGTHS for tensor in spec.inputs)


def ring_names(spec: OpSpec) -> tuple[str, ...]:
    """The inputs of ``spec``, of that form, that are the tensors of the ring, in the order of RINGS."""
    return tuple(RING_PREFIX + tensor.name for tensor in RINGS[base_name(spec.name)])


def _with_ring(spec: OpSpec, tensor: TensorSpec, suffix: str) -> tuple[TensorSpec, ...]:
    if tensor.name != STATE + suffix:
        return (tensor,)
    ring = (
        TensorSpec(RING_PREFIX + t.name + suffix, t.dtype or "T", ("batch", t.outer, RING, t.inner), f"ring: {t.doc}")
        for t in RINGS[spec.name]
    )
    lengths = TensorSpec(
        RING_LENGTHS + suffix, DType.INT32, ("batch", 1), f"tokens in the ring, clamped to 0..{RING - 1}"
    )
    return (tensor, *ring, lengths)
