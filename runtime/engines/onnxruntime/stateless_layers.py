"""Rewrites what dense and paged graphs share: the layers without states."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from hybridge.runtime.engines.inner_values import expose_values
from hybridge.runtime.engines.onnxruntime.activations import use_exact_activations
from hybridge.runtime.engines.onnxruntime.fused_linear import use_fused_linear
from hybridge.runtime.engines.onnxruntime.gated_norms import use_gated_norms
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.linear import use_stored_weights
from hybridge.runtime.engines.onnxruntime.packed_tables import use_packed_tables
from hybridge.runtime.engines.onnxruntime.quantized_experts import use_quantized_experts
from hybridge.runtime.engines.onnxruntime.quantized_products import use_quantized_products
from hybridge.runtime.engines.onnxruntime.stored_experts import use_stored_experts
from hybridge.runtime.engines.onnxruntime.stored_products import use_stored_products
from hybridge.runtime.engines.onnxruntime.widen_types import widen_types


def rewrite_stateless_layers(
    model: ir.Model, kernels: Kernels, one_token: bool, exact: bool, shown: Sequence[str]
) -> None:
    """Rewrite norms, products, activations and experts of ``model``, in float32.

    one_token: for steps of a single token. exact: inputs of quantised weights are not rounded. shown: inner values that
    the graph also returns.
    """
    expose_values(model.graph, shown)
    widen_types(model)
    use_gated_norms(model, kernels)
    use_stored_weights(model)
    use_stored_products(model, exact)
    # Before activations become other operators.
    use_fused_linear(model)
    use_exact_activations(model, kernels.scaled_silu and one_token)
    use_quantized_products(model, kernels, exact)
    use_packed_tables(model)
    use_stored_experts(model, exact)
    use_quantized_experts(model, kernels, exact)
