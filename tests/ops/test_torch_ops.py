"""The torch operators: schema, fakes under tracing, and one ONNX node each after export."""

from __future__ import annotations

import math
import subprocess
import sys

import onnx
import pytest
import torch
from onnx import defs

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import all_specs
from hybridge.trt_plugins.onnx_schema import register_schemas
from tests.ops.cases import conv_case, delta_case, in_dtypes, ssm_case
from tests.ops.torch_call import run_conv, run_ssm, tensors
from tests.ops.traced import traced_layer

SSM_ATTRIBUTES = (1, 0.0, math.inf, 64)


def conv_arguments(bias: bool = True) -> tuple:
    case = conv_case(lengths=(5, 2), time=5, bias=bias)
    return (*tensors(case, in_dtypes(case, "float32")), "silu")


def ssm_arguments(state: str = "float32") -> tuple:
    case = ssm_case(lengths=(5, 2), time=5)
    return (*tensors(case, in_dtypes(case, "float16", state=state)), *SSM_ATTRIBUTES)


def delta_arguments(decay: str) -> tuple:
    case = delta_case(lengths=(5, 2), time=5, decay=decay)
    return (*tensors(case, in_dtypes(case, "bfloat16")), decay, 1, 0.0, 64)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("causal_conv1d", conv_arguments()),
        ("causal_conv1d", conv_arguments(bias=False)),
        ("update_ssm_state", ssm_arguments()),
        ("update_ssm_state", ssm_arguments(state="float16")),
        ("gated_delta_rule", delta_arguments("head")),
        ("gated_delta_rule", delta_arguments("key_channel")),
    ],
    ids=["conv", "conv-no-bias", "ssm", "ssm-fp16-state", "delta", "delta-key-channel"],
)
def test_schema_and_fake_agree_with_the_eager_form(name: str, arguments: tuple) -> None:
    torch_ops.register()
    torch_ops.register()
    op = getattr(torch.ops.trt_edgellm, name).default
    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_wrong_call_is_refused_by_name() -> None:
    case = ssm_case(lengths=(5,), time=5)
    inputs = tensors(case, in_dtypes(case, "float32"))
    with pytest.raises(UnsupportedError, match="A of type float32, found float16"):
        run_ssm([inputs[0], inputs[1].half(), *inputs[2:]])
    with pytest.raises(UnsupportedError, match="activation to be one of 'none', 'silu', found 'relu'"):
        run_conv(list(conv_arguments()[:5]), "relu")


@pytest.mark.parametrize("bias", [True, False])
def test_export_gives_one_node_an_operator(bias: bool) -> None:
    model = traced_layer(bias=bias, dtype=torch.bfloat16)
    nodes = [node for node in model.graph.node if node.domain == "trt_edgellm"]
    assert [node.op_type for node in nodes] == ["causal_conv1d", "update_ssm_state"]
    attributes = [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes]
    assert attributes[0] == {"activation": b"silu"}
    assert attributes[1] == {
        "dt_softplus": 1, "time_step_min": 0.0, "time_step_max": math.inf, "chunk_size": 64
    }  # fmt: skip
    assert [bool(name) for name in nodes[0].input] == [True, True, bias, True, True]
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 24, "trt_edgellm": 1}
    assert _dims(model.graph.output[0]) == [*_dims(model.graph.input[0])[:2], 4, 2]
    assert all(isinstance(dim, str) for dim in _dims(model.graph.output[0])[:2])


def _dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_onnx_schemas_match_the_specs() -> None:
    register_schemas()
    register_schemas()
    for spec in all_specs():
        schema = defs.get_schema(spec.name, spec.version, spec.domain)
        assert schema.since_version == spec.version
        assert [tensor.name for tensor in schema.inputs] == [tensor.name for tensor in spec.inputs]
        assert [tensor.name for tensor in schema.outputs] == [tensor.name for tensor in spec.outputs]
        assert set(schema.attributes) == {attribute.name for attribute in spec.attributes}
        optional = [t.option == defs.OpSchema.FormalParameterOption.Optional for t in schema.inputs]
        assert optional == [tensor.optional for tensor in spec.inputs]
    assert defs.get_schema("update_ssm_state", 1, "trt_edgellm").inputs[1].type_str == "tensor(float)"


def test_importing_torch_ops_does_not_import_torch() -> None:
    code = "import sys; from hybridge.trt_plugins import torch_ops; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
