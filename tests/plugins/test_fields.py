"""Attributes and what a plugin needs at run time survive TensorRT's fields."""

from __future__ import annotations

import gc
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.plugins.fields import CAPABILITIES, LAYER, WORKSPACE, make_fields, values_from_fields
from hybridge.trt_plugins.plugins.layer import PluginLayer, Workspace, layer_from_fields

SSM, CONV = spec_of("update_ssm_state"), spec_of("causal_conv1d")
SSM_VALUES = {"dt_softplus": 0, "time_step_min": -math.inf, "time_step_max": 0.1, "chunk_size": 256}


def collected(trt: Any, fields: list[Any]) -> Any:
    """A collection, after memory without references has been used for something else."""
    collection = trt.PluginFieldCollection(fields)
    gc.collect()
    _ = [np.full(5, 99, np.int32) for _ in range(200)]
    return collection


@pytest.mark.parametrize(
    ("spec", "attributes"),
    [(SSM, SSM_VALUES), (SSM, {}), (CONV, {"activation": "silu"}), (CONV, {"activation": "none"})],
)
def test_layers_survive(trt: Any, spec: Any, attributes: dict[str, Any]) -> None:
    complete, workspace = spec.complete_attributes(attributes), Workspace(5120)
    layer = PluginLayer(spec, "layers.7/mixer", complete, ("8.7", "12.0"), workspace, aliased=False)
    fields = make_fields(trt, spec, layer.field_values())
    found = layer_from_fields(spec, "", values_from_fields(spec, collected(trt, fields)))
    # A float is an IEEE single.
    single = {n: float(np.float32(v)) if isinstance(v, float) else v for n, v in layer.attributes.items()}
    assert dict(found.attributes) == single
    assert (found.name, found.capabilities, found.workspace) == ("layers.7/mixer", ("8.7", "12.0"), workspace)
    assert not found.aliased


def test_a_workspace_may_pass_2_gib(trt: Any) -> None:
    layer = PluginLayer(CONV, "x", CONV.complete_attributes({}), (), Workspace((5 << 30) + 1))
    fields = make_fields(trt, CONV, layer.field_values())
    found = layer_from_fields(CONV, "x", values_from_fields(CONV, fields))
    assert found.workspace.nbytes == (5 << 30) + 256


def test_strings_of_the_parser_end_with_a_zero(trt: Any) -> None:
    text = np.frombuffer(b"silu\0", np.int8)
    fields = [trt.PluginField("activation", text, trt.PluginFieldType.CHAR)]
    assert values_from_fields(CONV, fields).attributes == {"activation": "silu"}


def test_absent_attributes_take_their_defaults(trt: Any) -> None:
    values = values_from_fields(SSM, make_fields(trt, SSM, {CAPABILITIES: "", LAYER: "", WORKSPACE: 0}))
    assert values.attributes == SSM.complete_attributes({})
    assert layer_from_fields(SSM, "from TensorRT", values).name == "from TensorRT"


@pytest.mark.parametrize(
    ("name", "data", "kind", "error", "words"),
    [
        (
            "dt_softplus",
            np.array([1.0], np.float32),
            "FLOAT32",
            EngineError,
            "dt_softplus of type INT32, found FLOAT32",
        ),
        ("dt_softplus", np.array([3], np.int32), "INT32", UnsupportedError, "dt_softplus to be one of 0, 1, found 3"),
        ("momentum", np.array([3], np.int32), "INT32", UnsupportedError, "found momentum"),
    ],
)
def test_wrong_fields_are_refused(trt: Any, name: str, data: Any, kind: str, error: Any, words: str) -> None:
    field = SimpleNamespace(name=name, data=data, size=len(data), type=getattr(trt.PluginFieldType, kind))
    with pytest.raises(error, match=words):
        values_from_fields(SSM, [field])
