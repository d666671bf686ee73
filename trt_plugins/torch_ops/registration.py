"""Definition of the torch operators from their specs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from trt_plugins.catalog import OPS
from trt_plugins.reference.causal_conv1d import causal_conv1d
from trt_plugins.reference.gated_delta_rule import gated_delta_rule
from trt_plugins.reference.mamba2_conv_scan import mamba2_conv_scan
from trt_plugins.reference.update_ssm_state import update_ssm_state
from trt_plugins.spec import OpSpec
from trt_plugins.torch_ops.schema import check_torch_call, torch_schema

_EAGER: dict[str, Callable] = {
    "causal_conv1d": causal_conv1d,
    "update_ssm_state": update_ssm_state,
    "mamba2_conv_scan": mamba2_conv_scan,
    "gated_delta_rule": gated_delta_rule,
}


@cache
def register_all() -> None:
    """Define every operator of the catalog once per process."""
    for spec in OPS.values():
        torch.library.define(spec.qualified_name, torch_schema(spec), tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(spec.qualified_name, "default", _eager_form(spec))
        torch.library.register_fake(spec.qualified_name, _fake_form(spec))


def _eager_form(spec: OpSpec) -> Callable:
    reference = _EAGER[spec.name]

    def eager(*arguments: object) -> tuple[Tensor, ...]:
        check_torch_call(spec, arguments)
        return reference(*arguments)

    return eager


def _fake_form(spec: OpSpec) -> Callable:
    """Outputs like the inputs that the spec says they equal; symbolic sizes are never compared, so no guards."""

    def fake(*arguments: Tensor) -> tuple[Tensor, ...]:
        check_torch_call(spec, arguments)
        sources = (arguments[spec.output_source(output)] for output in spec.outputs)
        return tuple(source.new_empty(source.shape) for source in sources)

    return fake
