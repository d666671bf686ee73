"""Every operator of the domain ``trt_edgellm``, by version of the domain and name.

Version 1 is dense: rows of equal length, right-padded. Version 2 is packed: rows one after another, states and KV
caches in pools. Operators over KV caches exist in version 1 alone, those over pools
from version 2 on; all others have both forms. Version 3
is version 2 with a slot for the state after each of a row's draft tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.attention_step import ATTENTION_STEP
from hybridge.trt_plugins.specs.cached_attention import CACHED_ATTENTION, CACHED_LATENT_ATTENTION
from hybridge.trt_plugins.specs.causal_conv1d import CAUSAL_CONV1D
from hybridge.trt_plugins.specs.fp8_kv import fp8_form
from hybridge.trt_plugins.specs.gated_delta_rule import GATED_DELTA_RULE
from hybridge.trt_plugins.specs.mamba2_conv_scan import MAMBA2_CONV_SCAN
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, packed_form
from hybridge.trt_plugins.specs.paged_attention import PAGED_ATTENTION
from hybridge.trt_plugins.specs.reshape_and_cache import RESHAPE_AND_CACHE
from hybridge.trt_plugins.specs.rounded_experts import ROUNDED_EXPERTS
from hybridge.trt_plugins.specs.routed_experts import ROUTED_EXPERTS
from hybridge.trt_plugins.specs.selective_scan import SELECTIVE_SCAN
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION, speculative_form
from hybridge.trt_plugins.specs.state_8bit import state_8bit_form
from hybridge.trt_plugins.specs.state_ring import ring_form
from hybridge.trt_plugins.specs.update_ssm_state import UPDATE_SSM_STATE

DOMAIN = "trt_edgellm"
DENSE_VERSION = 1

_IN_EVERY_LAYOUT = (
    *(CAUSAL_CONV1D, UPDATE_SSM_STATE, MAMBA2_CONV_SCAN, GATED_DELTA_RULE, SELECTIVE_SCAN),
    *(ROUTED_EXPERTS, ROUNDED_EXPERTS),
    state_8bit_form(UPDATE_SSM_STATE, summed="state_size"),
    state_8bit_form(GATED_DELTA_RULE, summed="key_size"),
    *map(ring_form, (UPDATE_SSM_STATE, GATED_DELTA_RULE)),
)
OVER_CACHES = (ATTENTION_STEP, CACHED_ATTENTION, CACHED_LATENT_ATTENTION)
OPS: Mapping[str, OpSpec] = MappingProxyType({spec.name: spec for spec in (*_IN_EVERY_LAYOUT, *OVER_CACHES)})
"""Version 1."""

_OVER_POOLS = (RESHAPE_AND_CACHE, PAGED_ATTENTION)
PACKED_OPS: Mapping[str, OpSpec] = MappingProxyType(
    {spec.name: spec for spec in (*map(packed_form, _IN_EVERY_LAYOUT), *_OVER_POOLS, *map(fp8_form, _OVER_POOLS))}
)
"""Version 2."""

SPECULATIVE_OPS: Mapping[str, OpSpec] = MappingProxyType(
    {name: speculative_form(spec) for name, spec in PACKED_OPS.items()}
)
"""Version 3."""

_VERSIONS = MappingProxyType({DENSE_VERSION: OPS, PACKED_VERSION: PACKED_OPS, SPECULATIVE_VERSION: SPECULATIVE_OPS})


def all_specs() -> tuple[OpSpec, ...]:
    """Every operator of every version, an operator that two versions share once."""
    return tuple(dict.fromkeys(spec for ops in _VERSIONS.values() for spec in ops.values()))


def spec_of(name: str, version: int = DENSE_VERSION) -> OpSpec:
    """The declaration of operator ``name`` in ``version``; UnsupportedError listing the known ones otherwise."""
    ops = _VERSIONS.get(version)
    if ops is None:
        raise UnsupportedError(
            f"expected version {' or '.join(map(str, _VERSIONS))} of the domain {DOMAIN}, found {version}; "
            "export the checkpoint again"
        )
    if name not in ops:
        raise UnsupportedError(
            f"expected one of the operators of {DOMAIN} ({', '.join(ops)}), found {name}; register its spec"
        )
    return ops[name]
