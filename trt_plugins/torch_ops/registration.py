"""Definition of the torch operators from their specs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import DENSE_VERSION, OPS, all_specs, spec_of
from hybridge.trt_plugins.reference.attention_step import attention_step
from hybridge.trt_plugins.reference.cached_attention import cached_attention, cached_latent_attention
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.mamba2_conv_scan import mamba2_conv_scan
from hybridge.trt_plugins.reference.packed import packed_reference
from hybridge.trt_plugins.reference.paged_attention import paged_attention, paged_attention_fp8
from hybridge.trt_plugins.reference.reshape_and_cache import reshape_and_cache, reshape_and_cache_fp8
from hybridge.trt_plugins.reference.rounded_experts import rounded_experts
from hybridge.trt_plugins.reference.routed_experts import routed_experts
from hybridge.trt_plugins.reference.selective_scan import selective_scan
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.reference.state_8bit import state_8bit_reference
from hybridge.trt_plugins.reference.state_ring import ring_reference, speculative_ring_reference
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from hybridge.trt_plugins.spec import OpSpec, TensorSpec
from hybridge.trt_plugins.specs.packed import has_rows
from hybridge.trt_plugins.specs.speculative import is_speculative
from hybridge.trt_plugins.specs.state_8bit import is_8bit
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import is_ring
from hybridge.trt_plugins.torch_ops.schema import check_torch_call, overload_name, torch_schema

_EAGER: dict[str, Callable] = {
    "attention_step": attention_step,
    "cached_attention": cached_attention,
    "cached_latent_attention": cached_latent_attention,
    "causal_conv1d": causal_conv1d,
    "update_ssm_state": update_ssm_state,
    "mamba2_conv_scan": mamba2_conv_scan,
    "gated_delta_rule": gated_delta_rule,
    "selective_scan": selective_scan,
    "rounded_experts": rounded_experts,
    "routed_experts": routed_experts,
    "reshape_and_cache": reshape_and_cache,
    "paged_attention": paged_attention,
    "reshape_and_cache_fp8": reshape_and_cache_fp8,
    "paged_attention_fp8": paged_attention_fp8,
}


@cache
def register_all() -> None:
    """Define every operator of the catalog once per process: each version's as an overload."""
    with _source_lookup_off():
        _register(all_specs())


def _register(specs: Iterable[OpSpec]) -> None:
    for spec in specs:
        name = overload_name(spec)
        torch.library.define(name, torch_schema(spec), tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(name, "default", _eager_form(spec))
        torch.library.register_fake(name, _fake_form(spec))


@contextlib.contextmanager
def _source_lookup_off() -> Iterator[None]:
    """Inside, torch notes this file alone as an operator's source: it looks for the line in all modules, 2 ms each."""
    utils = torch._library.utils
    original = getattr(utils, "get_source", None)
    if original is None:
        yield
        return
    utils.get_source = lambda stacklevel: __file__
    try:
        yield
    finally:
        utils.get_source = original


def _eager_form(spec: OpSpec) -> Callable:
    if is_ring(spec) and is_speculative(spec):
        plain = spec_of(base_name(spec.name), spec.version)
        reference = speculative_ring_reference(spec, plain, _EAGER[plain.name])
    elif is_ring(spec):
        reference = ring_reference(OPS[spec.name], OPS[base_name(spec.name)], _EAGER[base_name(spec.name)])
    else:
        reference = _EAGER[base_name(spec.name)]
    if is_8bit(spec):
        reference = state_8bit_reference(OPS[spec.name], reference)
    if is_speculative(spec) and not is_ring(spec):
        reference = speculative_reference(spec, reference)
    elif not is_speculative(spec) and spec.version != DENSE_VERSION and spec.name in OPS and has_rows(spec):
        reference = packed_reference(spec, reference)

    def eager(*arguments: object) -> tuple[Tensor, ...] | Tensor:
        check_torch_call(spec, arguments)
        return reference(*arguments)

    return eager


def _fake_form(spec: OpSpec) -> Callable:
    """Outputs of the sizes that the spec declares; symbolic sizes are never compared, so no guards."""

    def fake(*arguments: Tensor) -> tuple[Tensor, ...] | Tensor:
        check_torch_call(spec, arguments)
        outputs = tuple(_empty(spec, output, arguments) for output in spec.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    return fake


def _empty(spec: OpSpec, output: TensorSpec, arguments: Sequence[Tensor]) -> Tensor:
    if spec.is_like_input(output):
        source = arguments[spec.output_source(output)]
        return source.new_empty(source.shape)
    assert isinstance(output.dtype, DType)
    sizes = [n if isinstance(n, int) else arguments[n[0]].shape[n[1]] for n in spec.output_sizes(output)]
    return arguments[0].new_empty(sizes, dtype=getattr(torch, output.dtype.value))
