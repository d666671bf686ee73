"""The scalar functions of the kernels, compiled for the host, with instructions as inexact as PTX and CUDA allow."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from hybridge.trt_plugins.kernels.source import source_folder
from tests.support.activation_sweep import LIMIT, X, worst_error

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

FUNCTIONS = {
    "softplus": "softplus",
    "softplus_polynomial": "softplus",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
}
# Largest relative errors: ex2.approx.ftz.f32 2^-22, rcp.approx.ftz.f32 2^-23 (PTX ISA); __expf, expf and erfcxf in
# units of 2^-23 (CUDA C programming guide, mathematical functions). SIGN is the sign of all these errors.
HOST = """
#include <cmath>
#include <cfloat>
#define __device__
#define __forceinline__ inline
static float SIGN = 1.0f;
static float off(double exact, double error) { return static_cast<float>(exact * (1.0 + SIGN * error)); }
static float flushed(float x) { return std::fabs(x) < FLT_MIN ? 0.0f : x; }
static float ex2(float x) { return flushed(off(std::exp2(static_cast<double>(x)), std::ldexp(1.0, -22))); }
static float rcp(float x) { return flushed(off(1.0 / static_cast<double>(x), std::ldexp(1.0, -23))); }
static float cuda_expf(float x, double units) { return off(std::exp(static_cast<double>(x)), std::ldexp(units, -23)); }
static float erfcxf(float x) {
    const long double wide = x;
    return off(static_cast<double>(std::exp(wide * wide) * std::erfc(wide)), std::ldexp(4.0, -23));
}
#define __expf(x) cuda_expf(x, 2.0 + std::floor(std::fabs(1.173 * (x))))
#define expf(x) cuda_expf(x, 1.0)
"""
ASSEMBLY = re.compile(r'asm\("(ex2|rcp)\.approx\.ftz\.f32 %0, %1;" : "=f"\((\w+)\) : "f"\((.*)\)\);')


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = ASSEMBLY.sub(r"\2 = \1(\3);", (source_folder() / "common/math.cuh").read_text())
    assert "asm" not in source
    sweeps = "".join(
        f'extern "C" void sweep_{name}(const float* x, float* y, int n, float sign) '
        f"{{ SIGN = sign; for (int i = 0; i < n; i++) y[i] = {name}(x[i]); }}\n"
        for name in FUNCTIONS
    )
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cpp").write_text(HOST + source.replace("#pragma once", "") + sweeps)
    built = folder / "math.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", str(folder / "math.cpp"), "-o", str(built)], check=True)
    return ctypes.CDLL(str(built))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_functions_of_the_kernels(library: ctypes.CDLL, name: str, sign: float) -> None:
    y, pointer = np.empty_like(X), ctypes.POINTER(ctypes.c_float)
    function = getattr(library, f"sweep_{name}")
    function(X.ctypes.data_as(pointer), y.ctypes.data_as(pointer), ctypes.c_int(len(X)), ctypes.c_float(sign))
    assert worst_error(y, FUNCTIONS[name]) < LIMIT


def test_no_function_is_left_out() -> None:
    text = (source_folder() / "common/math.cuh").read_text()
    functions = set(re.findall(r"__forceinline__ float (\w+)\(", text))
    assert functions - {"exp2_approx"} == set(FUNCTIONS), "exp2_approx is an instruction that the others use"
