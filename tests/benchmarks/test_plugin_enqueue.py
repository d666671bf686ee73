"""The sizes of the enqueue benchmark are those of every operator that it calls."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the benchmark needs torch")

from benchmarks.plugin_enqueue import SIZES
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels.catalog import operators


def dims_of(op: str) -> set[str]:
    return {dim for tensor in OPS[op].inputs for dim in tensor.dims_for(True) if isinstance(dim, str)}


@pytest.mark.parametrize("op", [op for op in operators() if op in OPS])
def test_every_dim_has_a_size(op: str) -> None:
    assert dims_of(op) - {"batch", "time"} <= set(SIZES)
    if "conv_dim" in dims_of(op):
        assert SIZES["inner"] == SIZES["heads"] * SIZES["head_dim"]
        assert SIZES["conv_dim"] == SIZES["inner"] + 2 * SIZES["groups"] * SIZES["state_size"]
