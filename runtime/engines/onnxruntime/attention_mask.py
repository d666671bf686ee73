"""Find out what a boolean attention mask of a graph means, by evaluating it on a small case."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from hybridge.artifact.bindings import BATCH, MAX_SEQ, SEQ
from hybridge.artifact.names import CONTEXT_LENGTHS, PAST_LENGTHS
from hybridge.runtime.engines.onnxruntime.kernels import Kernels, quiet_options
from hybridge.runtime.engines.onnxruntime.opset import lower_opset

_SEQ = 3


def is_causal_mask(model: ir.Model, mask: ir.Value, window: int | None, kernels: Kernels) -> bool:
    """True when ``mask`` [batch, 1, seq, max_seq] shows each token all positions up to its own.

    Positions count from past_lengths; with ``window`` only the last ``window`` positions are shown. The part of
    the graph that computes the mask is run on rows with and without past; a mask that depends on anything else
    than lengths and shapes does not qualify.
    """
    longest = 2 + (window or 4)
    past = np.array([longest, 0], np.int32)
    max_seq = longest + _SEQ + 2
    found = _evaluate(model, mask, past, max_seq, kernels)
    query = past[:, None, None, None] + np.arange(_SEQ)[None, None, :, None]
    key = np.arange(max_seq)
    expected = (key <= query) & (True if window is None else key > query - window)
    return found is not None and found.shape == expected.shape and bool(np.array_equal(found, expected))


def _evaluate(model: ir.Model, mask: ir.Value, past: np.ndarray, max_seq: int, kernels: Kernels) -> np.ndarray | None:
    part = ir.convenience.extract(model.graph, list(model.graph.inputs), [mask])
    axes = {BATCH: len(past), SEQ: _SEQ, MAX_SEQ: max_seq}
    lengths = {PAST_LENGTHS: past, CONTEXT_LENGTHS: np.full(len(past), _SEQ, np.int32)}
    used = [value for value in part.inputs if value.uses()]
    feeds = {}
    for value in used:
        assert value.name is not None and value.shape is not None and value.dtype is not None
        shape = [size if isinstance(size, int) else axes.get(str(size.value), 1) for size in value.shape.dims]
        feeds[value.name] = lengths.get(value.name, np.zeros(shape, value.dtype.numpy()))
    for value in [value for value in part.inputs if not value.uses()]:
        part.inputs.remove(value)
    part.name = part.name or "mask"
    single = ir.Model(part, ir_version=10)
    try:
        lower_opset(single, kernels)
        proto = ir.to_proto(single)
        session = ort.InferenceSession(proto.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0]
    except Exception:  # not computable from lengths and shapes alone (for example it needs a weight)
        return None
