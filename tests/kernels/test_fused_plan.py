"""Which kernels run the fused problems of whole-model decode; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import Memory, PointerSource
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.fused import linear_decode, rms_norm, tiled_experts
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode
from hybridge.trt_plugins.kernels.fused.rms_norm import RmsNorm
from hybridge.trt_plugins.kernels.fused.tiled_experts import TiledExperts
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, WeightFormat, formats, unpack_plan
from tests.support.kernel_calls import H200, ORIN

BF16, F16, F32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32
LINEAR = LinearDecode(rows=1, inputs=4096, outputs=18560, dtype=BF16, out_dtype=BF16)
INT4 = WeightFormat("int4", BF16, 128)
NORM = RmsNorm(rows=2, columns=8192, dtype=BF16, epsilon=1e-5)


def linear_launch(device=H200, **change):
    (launch,) = linear_decode.plan(replace(LINEAR, **change), device).launches
    return launch


def norm_launch(**change):
    (launch,) = rms_norm.plan(replace(NORM, **change), H200).launches
    return launch


def test_bulk_copies_where_the_hardware_has_them():
    for device, bulk in ((H200, True), (ORIN, False)):
        assert linear_launch(device).source.file == f"linear_decode/{'bulk' if bulk else 'row'}_copies.cu"
        assert dict(linear_launch(device, tiles=INT4).source.defines)["BULK_COPIES"] == str(int(bulk))
        assert linear_launch(device).overlap == bulk
        for rows, outputs, stages in ((1, 1 << 17, 3 if bulk else 2), (1, 21504, 2), (2, 1 << 17, 2)):
            assert dict(linear_launch(device, rows=rows, outputs=outputs).source.defines)["STAGES"] == str(stages)


@pytest.mark.parametrize("shared_bytes", [101376, 166912, 232448])
@pytest.mark.parametrize("capability", [(8, 6), (9, 0), (12, 0)])
@pytest.mark.parametrize("rows", [1, 9])
def test_blocks_fit_in_shared_memory(shared_bytes, capability, rows):
    device = replace(H200, capability=capability, shared_bytes=shared_bytes)
    assert linear_launch(device, rows=rows).shared_bytes <= shared_bytes
    for tiles in formats():
        assert linear_launch(device, rows=rows, dtype=tiles.dtype, tiles=tiles).shared_bytes <= shared_bytes


def test_one_block_a_multiprocessor_unless_outputs_are_few():
    assert linear_launch().grid == (132, 1, 1)
    assert linear_launch(outputs=20).grid == (3, 1, 1)


def test_absent_inputs_have_no_pointer():
    assert set(linear_launch().pointers) == {"x", "weight", "y"}
    full = linear_launch(activation="silu_gate", residual=True, norm_epsilon=1e-5).pointers
    assert set(full) == {"x", "weight", "up_weight", "residual", "norm_weight", "y"}
    assert full["norm_weight"] == PointerSource(Memory.INPUT, linear_decode.INPUTS.index("norm_weight"))


def test_weights_in_tiles_have_factors():
    launch = linear_launch(tiles=INT4, activation="silu_gate")
    assert set(launch.pointers) == {"x", "weight", "up_weight", "factors", "up_factors", "y"}
    assert launch.source.file == "linear_decode/tiles.cu"
    assert linear_launch(ORIN, tiles=INT4).source.file == "linear_decode/tiles.cu"


@pytest.mark.parametrize(
    ("inputs", "group", "size"), [(4096, 128, 256), (21504, 16, 256), (2048, 128, 128), (768, 0, 32), (768, 128, 128)]
)
def test_tiles_are_as_wide_as_gives_every_warp_one(inputs, group, size):
    tiles = replace(INT4, group=group)
    assert tiles.tile_inputs(inputs) == size
    scales = 8 * 2 * (size // group) if group else 0
    assert tiles.tiles_shape(17, inputs) == (inputs // size, 3, 4 * size + scales)


def test_one_warp_unpacks_a_tile():
    (launch,) = unpack_plan(UnpackTiles(INT4, 18560, 4096)).launches
    assert launch.grid == (290, 16, 1) and launch.block == (256, 1, 1)


def test_experts_in_tiles_take_a_block_for_16_rows():
    problem = TiledExperts(3, 2, 8, 2048, 520, INT4, replace(INT4, group=0), "silu", True, 2048)
    call = tiled_experts.plan(problem, H200)
    up, down = call.launches
    assert up.grid == (33, 6, 1) and down.grid == (128, 3, 1)
    assert call.workspace_bytes == 2 * 6 * 520
    for change, message in (
        ({"tokens": 65}, "1 to 128 tokens times top_k, found 130"),
        ({"intermediate": 516}, "multiples of 8, found 2048, 516, 2048"),
        ({"hidden": 2080}, "multiples of 128, found 2080"),
        ({"activation": "tanh"}, "found tanh"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            replace(problem, **change)


def test_rows_may_be_one_and_the_same():
    params = linear_launch(rows=3, residual=True, x_stride=0, residual_stride=0).params
    assert (params.x_stride, params.residual_stride, params.y_stride) == (0, 0, 18560)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 17}, "expected 1 to 16 rows, found 17 rows"),
        ({"inputs": 4100}, "multiples of 8, found 4100 inputs"),
        ({"x_stride": 4100}, "multiples of 8, found 4096 inputs and x rows 4100 apart"),
        ({"dtype": F32}, "expected float16 or bfloat16, found float32"),
        ({"dtype": F16, "norm_epsilon": 1e-5}, "fused norm in bfloat16, found float16; use rms_norm"),
        ({"rows": 9, "norm_epsilon": 1e-5}, "fused norm of 1 to 8 rows, found 9; use rms_norm"),
        ({"bias": True, "activation": "silu_gate"}, "no bias in the gated form"),
        ({"tiles": INT4, "inputs": 4160}, "inputs in multiples of 128, found 4160"),
        ({"tiles": INT4, "dtype": F16}, "tiles for float16, found bfloat16"),
    ],
)
def test_linear_decode_refuses(change, message):
    with pytest.raises(UnsupportedError, match=message):
        linear_launch(**change)


def test_a_norm_takes_one_block_a_group():
    assert norm_launch().grid == (1, 2, 1)
    assert norm_launch(group=1024).grid == (8, 2, 1)
    assert dict(norm_launch(group=1024).source.defines)["VECTOR"] == "8"
    assert dict(norm_launch(group=1024, strides=(("x", 8194),)).source.defines)["VECTOR"] == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int3", BF16), "one of the codes int4, e2m1, int8, e4m3, found int3"),
        (("int4", F32), "float16 or bfloat16, found float32"),
        (("int4", BF16, 48), "groups of 16, 32, 64, 128 inputs or 0, found 48"),
        (("int4", BF16, 16, True), "e4m3 scales of e2m1 in groups of 16, found int4 in 16"),
        (("e2m1", BF16, 32, False, True), "zero points of integers in groups, found e2m1 in 32"),
        (("int4", BF16, 0, False, True), "zero points of integers in groups, found int4 in 0"),
    ],
)
def test_weight_formats_refuse(arguments, message):
    with pytest.raises(UnsupportedError, match=message):
        WeightFormat(*arguments)


@pytest.mark.parametrize("rows", [65535, 65536, 131072, 2**31 - 1])
def test_a_norm_takes_any_number_of_rows(rows):
    """As many as 4,096 tokens of 32 heads have."""
    launch = norm_launch(rows=rows, columns=128)
    _, y, z = launch.grid
    assert max(y, z) <= 65535 and rows <= y * z < rows + z and launch.params.rows == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 2**31}, "1 to 2147483647 rows, found 2147483648; split"),
        ({"group": 1000}, "groups that divide 8192 columns, found 1000"),
        ({"residual": True, "gate": True}, "a residual or one gate, found several"),
        ({"columns": 65536}, "groups of at most 32768 columns"),
        ({"strides": (("z", 1),)}, "found z"),
    ],
)
def test_rms_norm_refuses(change, message):
    with pytest.raises(UnsupportedError, match=message):
        norm_launch(**change)


def test_variants_compile():
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    plain = next(source for source in linear_decode.sources() if dict(source.defines)["NORM"] == "0")
    assert compile_kernel(plain, "sm_90a").report.problem is None
    assert compile_kernel(linear_launch(ORIN).source, "sm_86").report.problem is None
    assert compile_kernel(norm_launch(gate=True).source, "sm_87").report.problem is None
