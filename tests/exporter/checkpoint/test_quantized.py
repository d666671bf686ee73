"""Quantised weights of checkpoints: read as what they mean, by exporter and reference alike; bad ones are refused."""

from __future__ import annotations

import mmap
import threading
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.joined import joined_weight
from hybridge.exporter.checkpoint.quantized.scale_check import check_scales
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, QuantizedTensor
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from hybridge.exporter.weights.quantized import append_tensor
from hybridge.exporter.weights.source_files import SourceFiles
from hybridge.verification.dequantized import meant_weights
from tests.exporter.checkpoint.folders import single, write_json
from tests.support import quantized_checkpoints as formats
from tests.support.quantized_checkpoints import Arrays, Format, fp8_blocks, gptq, modelopt, pack_quantized

DYNAMIC = {"dynamic": True, "num_bits": 8, "type": "float", "strategy": "token"}
MODULE = "model.layers.0.mlp.up_proj"
INT8_ROWS = formats.eight_bits("int", "channel", symmetric=False)
FORMATS: dict[str, tuple[Format, tuple[int, int]]] = {
    "w4 groups of 16": (pack_quantized(16), (7, 48)),
    "w4 groups of 128, one block": (pack_quantized(128), (1, 128)),
    "w4 groups of 20, zero points, odd groups": (pack_quantized(20, symmetric=False), (9, 60)),
    "w4 groups of 16, act-order": (pack_quantized(16, ordered=True), (5, 80)),
    "w4 zero points, act-order": (pack_quantized(16, symmetric=False, ordered=True), (13, 32)),
    "w4 trivial groups of columns": (pack_quantized(16, indexed=True), (3, 32)),
    "w4 channel, repeated": (pack_quantized(None), (11, 96)),
    "w4 channel, zero points, repeated": (pack_quantized(None, symmetric=False), (11, 96)),
    "w4 channel, columns that no block divides": (pack_quantized(None, symmetric=False), (11, 20)),
    "w8 groups, zero points": (pack_quantized(32, bits=8, symmetric=False), (6, 64)),
    "gptq groups of 16": (gptq(16), (24, 48)),
    "gptq act-order, zero points": (gptq(16, symmetric=False, ordered=True), (8, 80)),
    "gptq v2, zero points, odd groups": (gptq(24, symmetric=False, version=2), (16, 72)),
    "gptq channel": (gptq(-1, symmetric=False), (8, 64)),
    "gptq of 8 bits": (gptq(16, bits=8, symmetric=False), (12, 32)),
    "awq": (formats.awq(16), (24, 48)),
    "awq channel": (formats.awq(-1), (8, 24)),
    "fp8 channel, dynamic inputs": (formats.eight_bits("float", "channel", inputs=DYNAMIC), (7, 20)),
    "fp8 tensor, static inputs": (formats.eight_bits("float", "tensor", inputs={**DYNAMIC, "dynamic": False}), (7, 20)),
    "fp8 blocks": (formats.eight_bits("float", "block"), (40, 96)),
    "int8 channel": (formats.eight_bits("int", "channel"), (7, 20)),
    "int8 tensor": (formats.eight_bits("int", "tensor"), (7, 20)),
    "int8 channel, zero points": (formats.eight_bits("int", "channel", symmetric=False), (7, 20)),
    "nvfp4": (formats.float4("nvfp4-pack-quantized"), (5, 48)),
    "mxfp4": (formats.float4("mxfp4-pack-quantized"), (5, 96)),
    "fp8 blocks of DeepSeek": (fp8_blocks(), (300, 256)),
    "fp8 blocks of DeepSeek, cut off": (fp8_blocks(), (130, 320)),
    "modelopt FP8": (modelopt("FP8"), (7, 20)),
    "modelopt NVFP4": (modelopt("NVFP4"), (5, 48)),
    "modelopt NVFP4_AWQ": (modelopt("NVFP4_AWQ", factors=True), (5, 48)),
    "modelopt MXFP4": (modelopt("MXFP4"), (5, 64)),
    "modelopt W4A16_AWQ": (modelopt("W4A16_AWQ", factors=True), (14, 48)),
    "w8 channel": (pack_quantized(None, bits=8), (6, 36)),
}


def test_a_stored_tensor_is_mapped_in_pieces(tmp_path: Path) -> None:
    path, numbers = tmp_path / "model.safetensors", np.arange(3 << 20, dtype=np.uint32)
    path.write_bytes(b"header  " + numbers.tobytes())
    slot = TensorSlot("w", DType.INT32, numbers.shape, path, 8, numbers.nbytes)
    read = b""
    for piece in GraphTensor(slot.dtype, slot.shape, stored=slot).pieces():
        base: Any = piece
        while not isinstance(base, mmap.mmap):
            base = base.base
        assert len(base) < 5 << 20
        read += piece.tobytes()
    assert read == numbers.tobytes()


def bytes_of(tensor: GraphTensor) -> np.ndarray:
    """All numbers of a tensor of the graph, as float32 in its shape."""
    with TemporaryDirectory() as folder, SourceFiles() as sources:
        path = Path(folder) / "a"
        with path.open("xb", buffering=0) as file:
            append_tensor(file, tensor, sources)
            file.truncate(file.tell())
        raw = np.fromfile(path, np.uint8)
    assert raw.tobytes() == b"".join(piece.tobytes() for piece in tensor.pieces())
    assert raw.size == tensor.dtype.nbytes(prod(tensor.shape))
    if tensor.dtype in (DType.INT4, DType.FLOAT4E2M1):
        halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[: prod(tensor.shape)]
        kind = ml_dtypes.float4_e2m1fn if tensor.dtype is DType.FLOAT4E2M1 else None
        numbers = halves.view(kind) if kind else (halves.astype(np.int32) + 8) % 16 - 8
    else:
        numbers = raw.view(tensor.dtype.numpy)
    return numbers.astype(np.float32).reshape(tensor.shape)


def meaning(weight: QuantizedTensor) -> np.ndarray:
    """float32 [rows, columns]: ONNX's DequantizeLinear, with the columns as the model's input has them."""
    columns = weight.shape[1]
    values, scales = bytes_of(weight.values), bytes_of(weight.scales)
    if weight.global_scale is not None:
        scales = scales * bytes_of(weight.global_scale).reshape((-1, 1) if weight.global_scale.shape else ())
    zeros = np.zeros_like(scales) if weight.zero_points is None else bytes_of(weight.zero_points)

    def spread(items: np.ndarray) -> np.ndarray:
        if items.ndim < 2:
            return items.reshape(-1, 1)
        assert weight.block is not None
        return np.repeat(items, weight.block, axis=1)

    found = (values - spread(zeros)) * spread(scales)
    if weight.factors is not None:
        found = found * bytes_of(weight.factors)
    if weight.order is None:
        return found
    result = np.empty_like(found)
    result[:, bytes_of(weight.order).astype(np.int64)] = found
    assert sorted(bytes_of(weight.order)) == list(range(columns))
    return result


def matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows * columns).standard_normal((rows, columns), np.float32)


def written(folder: Path, tensors: Arrays, config: dict[str, Any]) -> Path:
    return single(folder, {"lm_head.weight": np.ones((2, 3), np.float32), **tensors}, quantization_config=config)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_mean_what_the_format_says(name: str, tmp_path: Path) -> None:
    form, shape = FORMATS[name]
    tensors, meant = form.pack(MODULE, matrix(*shape))
    checkpoint = open_checkpoint(written(tmp_path / "c", tensors, form.config))
    assert set(checkpoint.tensors) == {f"{MODULE}.weight", "lm_head.weight"}
    assert checkpoint.tensors[f"{MODULE}.weight"].shape == shape
    weight = checkpoint.quantized[f"{MODULE}.weight"]
    assert {slot.name for slot in weight.sources} <= set(tensors)
    np.testing.assert_array_equal(meaning(weight), meant)
    reference = meant_weights(form.config, tensors_of(read_shards(tmp_path / "c")))
    np.testing.assert_array_equal(next(iter(reference)).floats(), meant)


EXPERTS = {
    "w4 zero points in some": (gptq(16), gptq(16, symmetric=False)),
    "awq": (formats.awq(16), formats.awq(16)),
    "fp8, a scale for each": (modelopt("FP8"), modelopt("FP8")),
    "int8, a scale and a zero point for each row": (INT8_ROWS, INT8_ROWS),
    "nvfp4, a scale of scales for each": (modelopt("NVFP4"), modelopt("NVFP4")),
    "fp8 blocks": (fp8_blocks(), fp8_blocks()),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_become_one_matrix(name: str, tmp_path: Path) -> None:
    tensors: Arrays = {}
    names = [f"{MODULE}s.{expert}" for expert in range(3)]
    for index, module in enumerate(names):
        tensors |= EXPERTS[name][index % 2].pack(module, (index + 1) * matrix(16, 256))[0]
    checkpoint = open_checkpoint(written(tmp_path / "c", tensors, EXPERTS[name][0].config))
    weights = [checkpoint.quantized[f"{module}.weight"] for module in names]
    found = joined_weight("experts.up", weights)
    assert found.shape == (48, 256)
    np.testing.assert_array_equal(meaning(found), np.concatenate([meaning(weight) for weight in weights]))


def test_experts_that_are_quantised_in_several_ways(tmp_path: Path) -> None:
    tensors = gptq(16).pack("a", matrix(16, 64))[0] | gptq(16).pack("b", matrix(16, 128))[0]
    found = open_checkpoint(written(tmp_path / "c", tensors, gptq(16).config)).quantized
    with pytest.raises(CheckpointError, match="all experts of a layer quantised in the same way"):
        joined_weight("experts.up", list(found.values()))


BAD_SCALES: list[tuple[Format, str, Any, str]] = [
    (modelopt("NVFP4"), "weight_scale", 0x7F, "holds nan"),
    (modelopt("NVFP4"), "weight_scale", 0x00, "holds 0.0"),
    (modelopt("NVFP4"), "weight_scale_2", np.inf, "holds inf"),
    (modelopt("NVFP4"), "input_scale", 0.0, "holds 0.0"),
    (modelopt("MXFP4"), "weight_scale", 255, "expected finite scales, found NaN"),
    (modelopt("FP8"), "weight", 0x7F, "holds nan.*expected finite numbers"),
    (modelopt("FP8"), "input_scale", np.nan, "holds nan"),
    (fp8_blocks(), "weight_scale_inv", -np.inf, "holds -inf"),
]


@pytest.mark.parametrize(("form", "suffix", "value", "words"), BAD_SCALES)
def test_scales_that_mean_nothing(form: Format, suffix: str, value: Any, words: str, tmp_path: Path) -> None:
    tensors, _ = form.pack(MODULE, matrix(130, 256))
    array = tensors[f"{MODULE}.{suffix}"] = tensors[f"{MODULE}.{suffix}"].copy()
    bytewise = array.view(np.uint8) if array.dtype.itemsize == 1 else array
    bytewise.reshape(-1)[-1:] = value
    weights = open_checkpoint(written(tmp_path / "c", tensors, form.config)).quantized.values()
    with pytest.raises(CheckpointError, match=rf"{suffix}.*{words}") as caught:
        check_scales(weights, threading.Event())
    assert "\n" not in str(caught.value)


def refused(folder: Path, words: str, error: type[HybridgeError] = CheckpointError) -> None:
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


G16 = pack_quantized(16)


@pytest.mark.parametrize(
    ("suffix", "value", "words"),
    [
        ("weight_packed", np.zeros((7, 5), np.int32), r"weight_packed: expected shape \[7, 6\]"),
        ("weight_packed", np.zeros((7, 6), np.float32), "weight_packed: expected int32, found float32"),
        ("weight_shape", np.array([7, 40]), r"weight_packed: expected shape \[7, 5\]"),
        ("weight_shape", np.array([0, 48]), r"weight_shape: expected \[7, columns\]"),
        ("weight_shape", np.array([7, 44]), "a group size that divides its 44 columns, found 16"),
        ("weight_shape", None, "expected the tensor .*weight_shape \\[2\\], found none"),
        ("weight_scale", None, r"expected the tensor .*weight_scale \[7, 3\], found none"),
        ("weight_scale", np.ones((7, 4), np.float16), r"weight_scale: expected shape \[7, 3\].*found \[7, 4\]"),
        ("weight_scale", np.ones((7, 3), np.int32), "weight_scale: expected float16 or bfloat16 or float32"),
        ("weight_g_idx", np.full(48, 3, np.int32), "weight_g_idx: expected groups from 0 to 2, found 3"),
        ("weight_g_idx", np.arange(48, dtype=np.int32) // 16 - 1, "expected groups from 0 to 2, found -1"),
        ("weight_g_idx", np.zeros(48, np.int32), "expected 16 columns in every group, found 48 in group 0"),
        ("weight_g_idx", np.zeros(40, np.int32), r"weight_g_idx: expected shape \[48\]"),
        ("weight", np.ones((7, 48), np.float32), "found it plain and quantised"),
        ("other", np.ones(3, np.uint8), "other is uint8, quantised in a way that no"),
    ],
)
def test_tensors_that_contradict_the_config(suffix: str, value: np.ndarray | None, words: str, tmp_path: Path) -> None:
    tensors, _ = G16.pack(MODULE, matrix(7, 48))
    tensors = {name: array for name, array in tensors.items() if name != f"{MODULE}.{suffix}"}
    if value is not None:
        tensors[f"{MODULE}.{suffix}"] = value
    kind = UnsupportedError if suffix == "other" else CheckpointError
    refused(written(tmp_path / "c", tensors, G16.config), words, kind)


def group(**changes: Any) -> dict[str, Any]:
    """The config of G16 with one group changed; its weights where a change is called "weights"."""
    own = G16.config["config_groups"]["group_0"]
    weights = {**own["weights"], **changes.pop("weights", {})}
    return {**G16.config, "config_groups": {"group_0": {**own, "weights": weights, **changes}}}


@pytest.mark.parametrize(
    ("config", "words", "error"),
    [
        (
            {**G16.config, "quant_method": "bitsandbytes"},
            "bitsandbytes.*expected quant_method to be one of",
            UnsupportedError,
        ),
        ({**G16.config, "format": "marlin-24"}, "format: expected one of .*'marlin-24'", UnsupportedError),
        ({**G16.config, "config_groups": {}}, "config_groups: expected an object", CheckpointError),
        ({**G16.config, "config_groups": {"W4A16": ["Linear"]}}, "W4A16: expected an object", UnsupportedError),
        ({**G16.config, "ignore": ["model.layers.9.mlp.up_proj"]}, "ignore.*layers.9.mlp.up_proj", CheckpointError),
        ({**G16.config, "ignore": ["re:.*up_proj"]}, "the quantised module .*up_proj", CheckpointError),
        ({**G16.config, "ignore": ["re:(a+)+$"]}, "expected regular expressions", UnsupportedError),
        ({**G16.config, "ignore": ["re:["]}, "expected a regular expression", CheckpointError),
        ({**G16.config, "transform_config": {"config_groups": {}, "x": 1}}, "transform_config", UnsupportedError),
        ({**G16.config, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config", UnsupportedError),
        ({**G16.config, "something": 1}, "something", CheckpointError),
        (group(targets=["model.layers.7.mlp.up_proj"]), "targets: .*layers.7", CheckpointError),
        (group(targets=["model.layers.0.mlp"]), "the quantised module .*up_proj", CheckpointError),
        (group(output_activations={"num_bits": 8}), "output_activations", UnsupportedError),
        (
            group(weights={"num_bits": 3}),
            "expected int of 4 .*, found int of 3 bits",
            UnsupportedError,
        ),
        (group(weights={"type": "float"}), "found float of 4 bits", UnsupportedError),
        (group(weights={"strategy": "block"}), "strategy: 'block' is not supported in format", UnsupportedError),
        (group(weights={"group_size": 0}), "group_size: expected a positive number", CheckpointError),
        (group(weights={"symmetric": False}), "expected the tensor .*weight_zero_point", CheckpointError),
        (group(weights={"actorder": "group"}), "expected the tensor .*weight_g_idx", CheckpointError),
        (group(weights={"actorder": "rows"}), "actorder: expected one of .*, found 'rows'", UnsupportedError),
    ],
)
def test_configs_that_are_not_honoured(
    config: dict[str, Any], words: str, error: type[HybridgeError], tmp_path: Path
) -> None:
    tensors, _ = G16.pack(MODULE, matrix(7, 48))
    refused(written(tmp_path / "c", tensors, config), words, error)


@pytest.mark.parametrize(
    "targets",
    [[MODULE], ["re:.*up_proj$"], ["model.layers.*.mlp.up_proj"], ["Linear"]],
)
def test_targets_by_name_expression_and_class(targets: list[str], tmp_path: Path) -> None:
    tensors, _ = G16.pack(MODULE, matrix(7, 48))
    config = group(targets=targets)
    assert open_checkpoint(written(tmp_path / "c", tensors, {**config, "ignore": ["lm_head"]})).quantized


OTHERS: list[tuple[Format, dict[str, Any], str]] = [
    (gptq(16), {"bits": 3}, "bits: expected 4 or 8, found 3"),
    (gptq(16), {"group_size": 0}, "group_size: expected a positive number of columns, or -1"),
    (gptq(16), {"group_size": 20}, "a group size that divides its 48 columns, found 20"),
    (gptq(16), {"group_size": 24}, r"scales: expected shape \[2, 24\].*found \[3, 24\]"),
    (gptq(16), {"checkpoint_format": "marlin"}, "expected gptq or gptq_v2, found 'marlin'"),
    (gptq(16), {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic: expected only rules that leave modules out"),
    (gptq(16), {"dynamic": 3}, "dynamic: expected an object"),
    (gptq(16), {"lora": 1}, "lora"),
    (formats.awq(16), {"version": "gemv"}, "bits 4 and version gemm, found 4 and 'gemv'"),
    (formats.awq(16), {"group_size": 40}, "a group size that divides its 48 columns, found 40"),
    (fp8_blocks(), {"weight_block_size": [64, 128]}, r"weight_scale_inv: expected shape \[.*of its blocks"),
    (fp8_blocks(), {"weight_block_size": 128}, r"weight_block_size: expected \[rows, columns\]"),
    (fp8_blocks(), {"fmt": "e5m2"}, "fmt: expected one of e4m3"),
    (fp8_blocks(), {"modules_to_not_convert": [MODULE]}, "is excluded from quantisation, but"),
    (fp8_blocks(), {"modules_to_not_convert": ["model.layers.8.mlp.gate"]}, "layers.8.mlp.gate'?, which it does not"),
    (modelopt("NVFP4"), {"quant_algo": "INT3"}, "expected one of FP8, .*found 'INT3'"),
    (modelopt("NVFP4"), {"quant_algo": "FP8"}, "weight: expected float8e4m3fn, found uint8"),
    (modelopt("NVFP4"), {"quant_algo": None}, "expected an entry for the quantised module .*up_proj"),
    (modelopt("NVFP4"), {"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, "quantised module .*up_proj"),
    (modelopt("NVFP4"), {"quant_algo": "MIXED_PRECISION"}, "quantized_layers: expected"),
    (modelopt("NVFP4"), {"exclude_modules": ["*.mlp.*"]}, "quantised module .*up_proj"),
    (modelopt("NVFP4"), {"exclude_modules": "lm_head"}, "exclude_modules: expected a list"),
]


@pytest.mark.parametrize(("form", "change", "words"), OTHERS)
def test_settings_of_other_methods_that_are_not_honoured(
    form: Format, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    rows, columns = (130, 256) if "fp8" in form.config["quant_method"] else (24, 48)
    tensors, _ = form.pack(MODULE, matrix(rows, columns))
    folder = written(tmp_path / "c", tensors, {**form.config, **change})
    with pytest.raises(HybridgeError, match=words) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_columns_in_another_order_whose_groups_are_missing(tmp_path: Path) -> None:
    form = gptq(16, ordered=True)
    tensors, _ = form.pack(MODULE, matrix(24, 48))
    del tensors[f"{MODULE}.g_idx"]
    refused(written(tmp_path / "c", tensors, form.config), r"expected the tensor .*g_idx \[48\], found none")


def test_modelopt_s_own_file_says_how_weights_are_quantised(tmp_path: Path) -> None:
    form = modelopt("NVFP4")
    tensors, meant = form.pack(MODULE, matrix(24, 48))
    scales = {"model.layers.0.self_attn.k_proj.k_scale": np.ones(1, np.float32)}
    folder = single(tmp_path / "c", {"lm_head.weight": np.ones((2, 3), np.float32), **tensors, **scales})
    settings = {key: value for key, value in form.config.items() if key not in ("quant_method", "producer")}
    write_json(folder / "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": settings})
    checkpoint = open_checkpoint(folder)
    np.testing.assert_array_equal(meaning(checkpoint.quantized[f"{MODULE}.weight"]), meant)
    notes = " ".join(checkpoint.notes)
    assert "keys and values in fp8" in notes and "8 bits with its k_scale and v_scale" in notes
    inputs = checkpoint.quantized[f"{MODULE}.weight"].inputs
    assert inputs is not None and inputs.name == "fp4 (dynamic, by 16)"


def test_rounding_of_inputs_that_is_not_supported_is_named(tmp_path: Path) -> None:
    asymmetric = {**DYNAMIC, "type": "int", "symmetric": False}
    form = formats.eight_bits("int", "channel", inputs=asymmetric)
    tensors, _ = form.pack(MODULE, matrix(7, 20))
    checkpoint = open_checkpoint(written(tmp_path / "c", tensors, form.config))
    assert "to int8 (dynamic, by token, with zero points), which is not supported" in " ".join(checkpoint.notes)


def test_a_rounding_without_its_scale_is_refused(tmp_path: Path) -> None:
    form = formats.eight_bits(
        "int", "tensor", inputs={**DYNAMIC, "type": "int", "dynamic": False, "strategy": "tensor"}
    )
    tensors, _ = form.pack(MODULE, matrix(7, 20))
    del tensors[f"{MODULE}.input_scale"]
    refused(written(tmp_path / "c", tensors, form.config), "expected the tensor .*up_proj.input_scale, found none")
