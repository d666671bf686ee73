"""Every operator of the domain ``trt_edgellm``, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from artifact.errors import UnsupportedError
from trt_plugins.spec import OpSpec
from trt_plugins.specs.causal_conv1d import CAUSAL_CONV1D
from trt_plugins.specs.gated_delta_rule import GATED_DELTA_RULE
from trt_plugins.specs.mamba2_conv_scan import MAMBA2_CONV_SCAN
from trt_plugins.specs.update_ssm_state import UPDATE_SSM_STATE

DOMAIN = "trt_edgellm"

OPS: Mapping[str, OpSpec] = MappingProxyType(
    {spec.name: spec for spec in (CAUSAL_CONV1D, UPDATE_SSM_STATE, MAMBA2_CONV_SCAN, GATED_DELTA_RULE)}
)


def spec_of(name: str) -> OpSpec:
    """The declaration of operator ``name``; UnsupportedError listing the known ones otherwise."""
    if name not in OPS:
        raise UnsupportedError(
            f"expected an operator of {DOMAIN} among {', '.join(OPS)}, found {name}; register its spec"
        )
    return OPS[name]
