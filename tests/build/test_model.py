"""model.onnx made ready for the parser, and everything about it that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.bindings import GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, EngineError
from hybridge.trt_plugins.build.model import fix_axes, parser_model
from tests.build.tiny_artifact import tiny_config, write_tiny_artifact
from tests.build.tiny_graph import ATTENTION_NAME

Edit = Callable[[onnx.ModelProto], None]


def weight(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def external(key: str, value: str) -> Edit:
    """Changes where the file says that the weight "head" lies."""

    def edit(model: onnx.ModelProto) -> None:
        next(item for item in weight(model, "head").external_data if item.key == key).value = value

    return edit


def parsed(folder: Path, max_seq_len: int = 33, edit: Edit = lambda model: None) -> onnx.ModelProto:
    artifact = write_tiny_artifact(folder / "artifact", edit=edit)
    model = parser_model(artifact, tiny_config(DType.FLOAT16), max_seq_len)
    return onnx.load_model_from_string(model.serialized)


def test_cache_axes_are_fixed_and_the_others_stay(tmp_path: Path) -> None:
    model = parsed(tmp_path)
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    assert shapes["past_key_0"] == ["batch", 2, 33, 8]
    assert shapes["input_ids"] == ["batch", "seq"]
    output = next(value for value in model.graph.output if value.name == "present_key_0")
    assert output.type.tensor_type.shape.dim[2].dim_value == 33


def test_no_weight_is_read(tmp_path: Path) -> None:
    model = parsed(tmp_path)
    assert weight(model, "head").data_location == TensorProto.EXTERNAL
    assert not weight(model, "head").raw_data


def test_the_artifact_stays_symbolic(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    before = (artifact / "model.onnx").read_bytes()
    parser_model(artifact, tiny_config(DType.FLOAT16), 33)
    assert (artifact / "model.onnx").read_bytes() == before


def test_an_axis_computed_from_a_fixed_one_becomes_unknown() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "max_seq - seq", "max_seq", "max_seq2"])
    model = helper.make_model(helper.make_graph([], "g", [value], []))
    fix_axes(model, {"max_seq": 5})
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.WhichOneof("value") for d in dims] == ["dim_param", None, "dim_value", "dim_param"]


def test_attention_may_be_decomposed(tmp_path: Path) -> None:
    node = next(node for node in parsed(tmp_path).graph.node if node.op_type == "Attention")
    assert {a.name: a.i for a in node.attribute}["TRT_decomposable"] == 1
    assert list(node.output) == [ATTENTION_NAME]


def test_float32_values_are_those_the_operators_declare(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    assert parser_model(artifact, tiny_config(DType.FLOAT16), 33).fp32_values == ("layers.1.A",)


def half_A(model: onnx.ModelProto) -> None:
    tensor = weight(model, "layers.1.A")
    tensor.CopyFrom(numpy_helper.from_array(np.ones(3, np.float16), tensor.name))


def drop_functions(model: onnx.ModelProto) -> None:
    del model.functions[:]


def rename_logits(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "logits2"
    model.graph.node[-1].output[0] = "logits2"


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        (half_A, ArtifactError, r"input A of layers\.1\.ssm in float32, found float16"),
        (drop_functions, EngineError, "a function for trt_edgellm::causal_conv1d"),
        (rename_logits, ArtifactError, "another output logits"),
        (external("length", "999999"), ArtifactError, "expected length 528 for"),
        (external("offset", "999999"), ArtifactError, "bytes for head, found"),
        (
            external("location", "../outside.safetensors"),
            ArtifactError,
            "weight .head.: expected a file inside",
        ),
        (
            external("location", "/etc/passwd"),
            ArtifactError,
            "weight .head.: expected a file inside",
        ),
        (
            external("location", "weights/absent.safetensors"),
            ArtifactError,
            "weights/absent.* found none",
        ),
    ],
)
def test_damaged_model_is_refused(tmp_path: Path, edit: Edit, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        parsed(tmp_path, edit=edit)


def test_missing_input_is_refused(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    config = tiny_config(DType.FLOAT16)
    bindings = GraphBindings(config.bindings.inputs[:-1], config.bindings.outputs)
    with pytest.raises(ArtifactError, match="another number of inputs"):
        parser_model(artifact, replace(config, bindings=bindings), 33)


@pytest.mark.parametrize(("content", "words"), [(b"\xff\xff\xff", "expected an ONNX model"), (None, "found none")])
def test_unreadable_model_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    (artifact / "model.onnx").unlink()
    if content is not None:
        (artifact / "model.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match=words):
        parser_model(artifact, tiny_config(DType.FLOAT16), 33)
