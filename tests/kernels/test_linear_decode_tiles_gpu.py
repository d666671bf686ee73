"""``linear_decode`` and ``unpack_plan`` with weights of 4 and 8 bits on the GPU against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles, WeightFormat, formats, unpack_plan
from tests.kernels.test_linear_decode_gpu import TOLERANCE, reference, run, tensors
from tests.support.kernel_calls import ORIN, run_plan
from tests.support.weights import Weight, random_weight

pytestmark = pytest.mark.gpu

BF16, F16, F32 = DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32
INT4 = WeightFormat("int4", BF16, 128)
INT4_32 = replace(INT4, group=32)
NVFP4 = WeightFormat("e2m1", BF16, 16, byte_scales=True)
FORMATS = (
    *formats(),
    INT4_32,
    replace(INT4, group=64),
    replace(INT4, group=0),
    replace(INT4, dtype=F16, group=0),
    replace(NVFP4, dtype=F16),
    WeightFormat("e2m1", BF16, 32),
    WeightFormat("e4m3", BF16),
    WeightFormat("e4m3", F16, 64),
    WeightFormat("int8", F16),
    WeightFormat("int8", BF16, 128),
)
BASE = LinearDecode(rows=3, inputs=640, outputs=265, dtype=BF16, out_dtype=BF16)


def weights_of(problem: LinearDecode, size: float = 1.0) -> list[Weight]:
    count = 2 if problem.activation == "silu_gate" else 1
    return [random_weight(problem.tiles, problem.outputs, problem.inputs, size * (i + 1)) for i in range(count)]


def given_and_exact(problem: LinearDecode, size: float = 1.0) -> tuple[list, list]:
    """Inputs of the launch, and the same with weights as matrices."""
    x, _, _, *rest = tensors(replace(problem, tiles=None))
    weights = weights_of(problem, size)
    tiles = [each.tiles() for each in weights]
    missing = [None] * (2 - len(weights))
    given = [x, *(each for each, _ in tiles), *missing, *rest, *(factors for _, factors in tiles), *missing]
    return given, [x, *(each.matrix for each in weights), *missing, *rest]


def check(problem: LinearDecode, size: float = 1.0, older: bool = False) -> None:
    """older: as for GPUs before sm_90, whose copies are others and whose blocks are smaller."""
    given, exact = given_and_exact(problem, size)
    expected = reference(problem, exact)
    traits = replace(ORIN, shared_bytes=101376) if older else KernelDevice.current().traits
    error = float((run(problem, given, traits).double() - expected).norm() / expected.norm())
    assert error <= TOLERANCE[problem.out_dtype], f"relative error {error:.3g}"


@pytest.mark.parametrize("tiles", FORMATS, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "older"), [(1, 640, False), (16, 4224, True)])
def test_formats(tiles, rows, inputs, older):
    problem = replace(BASE, rows=rows, inputs=inputs, tiles=tiles, dtype=tiles.dtype, out_dtype=tiles.dtype)
    check(problem, older=older)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("rows", range(1, 17))
def test_rows(rows, older):
    check(replace(BASE, rows=rows, tiles=INT4), older=older)


@pytest.mark.parametrize("inputs", [128, 384, 2048, 4096, 4224, 8192, 21504])
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("older", [False, True])
def test_inputs(inputs, rows, older):
    check(replace(BASE, inputs=inputs, rows=rows, tiles=INT4), older=older)


@pytest.mark.parametrize(("tiles", "inputs"), [(NVFP4, 16), (NVFP4, 48), (INT4_32, 96), (replace(INT4, group=0), 40)])
def test_inputs_may_be_any_multiple_of_the_group(tiles, inputs):
    check(replace(BASE, inputs=inputs, tiles=tiles))


@pytest.mark.parametrize("outputs", [1, 7, 8, 31, 1057, 18560])
@pytest.mark.parametrize("rows", [2, 16])
def test_outputs(outputs, rows):
    check(replace(BASE, outputs=outputs, rows=rows, tiles=INT4))


@pytest.mark.parametrize(("rows", "norm_epsilon"), [(1, None), (13, None), (8, 1e-5)])
@pytest.mark.parametrize("activation", ["none", "relu2", "silu_gate"])
@pytest.mark.parametrize("tiles", [INT4, NVFP4], ids=["int4", "nvfp4"])
def test_prologue_and_epilogue(tiles, activation, rows, norm_epsilon):
    bias = activation != "silu_gate"
    problem = replace(BASE, rows=rows, activation=activation, norm_epsilon=norm_epsilon, residual=True, bias=bias)
    check(replace(problem, tiles=tiles))
    check(replace(problem, tiles=tiles, outputs=2101, inputs=8320, residual=False, bias=False), older=True)


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize(
    "tiles", [INT4, NVFP4, WeightFormat("e4m3", BF16), replace(INT4, dtype=F16, group=16)], ids=str
)
def test_scales_may_be_tiny_or_huge(tiles, size):
    check(replace(BASE, tiles=tiles, dtype=tiles.dtype, out_dtype=F32), size if tiles.dtype is BF16 else size**0.1)


def test_a_row_of_zeros_gives_zeros_and_rows_do_not_touch():
    problem = replace(BASE, rows=4, tiles=INT4, inputs=4224, x_stride=4352, y_stride=300)
    given, _ = given_and_exact(problem)
    rows = torch.full((4, 4352), float("nan"), dtype=torch.bfloat16, device="cuda")[:, :4224]
    rows.copy_(given[0])
    rows[1:3] = 0
    y = run(problem, [rows, *given[1:]])
    assert not y[1:3].any() and y[0].any() and y[3].any() and y.isfinite().all()


def test_memory_outside_the_tiles_is_not_read():
    problem = replace(BASE, tiles=INT4)
    given, _ = given_and_exact(problem)
    tiles, expected = given[1], run(problem, given)
    around = torch.full((tiles.numel() + 2048,), 255, dtype=torch.uint8, device="cuda")
    inside = around[1024 : 1024 + tiles.numel()].view(tiles.shape)
    inside.copy_(tiles)
    assert torch.equal(run(problem, [given[0], inside, *given[2:]]), expected)


def test_a_row_does_not_depend_on_the_others_and_runs_agree():
    problem = replace(BASE, rows=16, inputs=4096, outputs=4099, tiles=INT4)
    given, _ = given_and_exact(problem)
    together = run(problem, given)
    assert all(torch.equal(together, run(problem, given)) for _ in range(5))
    for rows in (1, 8):
        assert torch.equal(run(replace(problem, rows=rows), [given[0][:rows], *given[1:]]), together[:rows])


@pytest.mark.parametrize("tiles", FORMATS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(265, 640), (64, 4224), (1, 128)])
def test_unpacked_weights_are_the_rounded_products_of_codes_and_scales(tiles, outputs, inputs):
    weight, dtype = random_weight(tiles, outputs, inputs, 2048.0), getattr(torch, tiles.dtype.value)
    y = torch.full((outputs + 1, inputs), float("nan"), dtype=dtype, device="cuda")
    packed = weight.tiles()
    run_plan(unpack_plan(UnpackTiles(tiles, outputs, inputs)), packed, [y])
    assert torch.equal(y[:outputs], weight.matrix.float().to(dtype))
    assert y[outputs:].isnan().all()
