"""Operators of the catalog: one torch operator becomes one node of the domain ``trt_edgellm``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from hybridge.exporter.ops.recorder import record
from hybridge.trt_plugins.catalog import all_specs
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.torch_ops.schema import OVERLOADS


def plugin_translations() -> Mapping[Any, Callable[..., Any]]:
    """Torch overload to translation, for every operator of every version; they must have been registered."""
    return {_overload(spec): _translation(spec) for spec in all_specs()}


def _overload(spec: OpSpec) -> Any:
    packet = getattr(getattr(torch.ops, spec.domain), spec.name)
    return getattr(packet, OVERLOADS[spec.version])


def _translation(spec: OpSpec) -> Callable[..., Any]:
    """A function of the torch operator's arguments that records the node with every attribute written out."""
    count, names = len(spec.inputs), [attribute.name for attribute in spec.attributes]

    def translate(*arguments: Any) -> Any:
        attributes = spec.complete_attributes(dict(zip(names, arguments[count:], strict=True)))
        return record(spec.domain, spec.name, spec.version, arguments[:count], len(spec.outputs), **attributes)

    return translate
