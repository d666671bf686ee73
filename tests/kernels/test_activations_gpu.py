"""Scalar functions of plugin_src/common/math.cuh on the GPU, swept against float64 over [-100, 100]."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hybridge.trt_plugins.kernels import source as source_module
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type
from tests.support.kernel_calls import run_plan

pytestmark = pytest.mark.gpu

FILE = "activation_sweep/sweep.cu"
SWEEP = """
#include "activation_sweep/params.cuh"
#include "common/math.cuh"
extern "C" __global__ void sweep(const __grid_constant__ Sweep p) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < p.count) p.y[i] = FUNCTION(p.x[i]);
}
"""
PARAMS = "#pragma once\nstruct Sweep {\n    const float* x;\n    float* y;\n    int count;\n};\n"
# Relative, where the value is above SMALLEST.
MOST, SMALLEST, LARGEST = 1e-5, 1e-30, torch.finfo(torch.float32).max


def softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.exp(-x.abs())) + x.clamp_min(0)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, torch.exp(x), torch.ones_like(x)) / (1 + torch.exp(-x.abs()))


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.special.erfc(-x * 0.5**0.5)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp2_approx": torch.exp2,
    "expf": torch.exp,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "softplus": softplus,
    "softplus_polynomial": softplus,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}


@pytest.fixture
def sweep_source(tmp_path, monkeypatch):
    """A source folder with the sweep and the project's headers."""
    folder = tmp_path / "plugin_src"
    (folder / "activation_sweep").mkdir(parents=True)
    (folder / "common").symlink_to(source_module.source_folder() / "common")
    (folder / "activation_sweep/sweep.cu").write_text(SWEEP)
    (folder / "activation_sweep/params.cuh").write_text(PARAMS)
    for module in ("source", "compiler", "structs"):
        monkeypatch.setattr(f"hybridge.trt_plugins.kernels.{module}.source_folder", lambda: folder)


def run(function: str, x: torch.Tensor) -> torch.Tensor:
    params = struct_type(FILE, "Sweep")()
    params.count = len(x)
    pointers = {"x": PointerSource(Memory.INPUT), "y": PointerSource(Memory.OUTPUT)}
    source = KernelSource(FILE, "sweep", (("FUNCTION", function),))
    y = torch.full_like(x, float("nan"))
    launch = KernelLaunch(source, (-(-len(x) // 256), 1, 1), (256, 1, 1), params, pointers)
    run_plan(CallPlan((launch,)), [x], [y])
    return y


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_those_of_float64(function, sweep_source):
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-100, 100, 400_001), 200 * torch.rand(400_000, generator=generator) - 100])
    x = torch.cat([x, x / 100, x / 10_000]).cuda()
    expected, found = FUNCTIONS[function](x.double()), run(function, x).double()
    error = (found - expected).abs() / expected.abs()
    above = expected.abs() > SMALLEST
    worst = torch.where(above & (expected.abs() < LARGEST), error, torch.zeros_like(error)).argmax()
    assert error[worst] <= MOST, f"{function}({float(x[worst])}): relative error {float(error[worst]):.3g}"
    assert (found[~above].abs() <= 2 * SMALLEST).all()


@pytest.mark.parametrize("function", ["silu", "gelu", "gelu_tanh"])
def test_large_and_infinite_values_pass(function, sweep_source):
    x = torch.tensor([1e4, 1e19, 3e38, float("inf")], device="cuda")
    assert torch.equal(run(function, x), x)
    assert not run(function, -x[:2]).isnan().any()
