"""Translations for the dynamo exporter: one torch operator becomes one node of the domain ``trt_edgellm``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from onnxscript import values

from hybridge.trt_plugins.catalog import all_specs
from hybridge.trt_plugins.onnx_schema import register_schemas
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.torch_ops.registration import register_all
from hybridge.trt_plugins.torch_ops.schema import OVERLOADS


def translation_table() -> dict[Callable, Callable]:
    """Torch overload to translation, for every operator of every version."""
    register_all()
    register_schemas()
    return {_overload(spec): _translation(spec) for spec in all_specs()}


def _overload(spec: OpSpec) -> Callable:
    packet = getattr(getattr(torch.ops, spec.domain), spec.name)
    return getattr(packet, OVERLOADS[spec.version])


def _translation(spec: OpSpec) -> Callable:
    """A function of the torch operator's arguments that records the node with every attribute written out."""
    node = getattr(values.Opset(spec.domain, spec.version), spec.name)
    names = [tensor.name for tensor in spec.inputs] + [attribute.name for attribute in spec.attributes]
    count = len(spec.inputs)

    def translate(*arguments: object) -> object:
        given = dict(zip(names[count:], arguments[count:], strict=True))
        return node(*arguments[:count], **spec.complete_attributes(given))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    translate.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    translate.__name__ = f"{spec.name}_node"
    return translate
