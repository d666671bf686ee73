"""The check for unset registers: on PTX by hand, on CUDA code with the fault, on the kernels that had it."""

from __future__ import annotations

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels import check
from hybridge.trt_plugins.kernels.catalog import sources
from hybridge.trt_plugins.kernels.compiler import CompiledKernel, compile_kernel
from hybridge.trt_plugins.kernels.disk_cache import KernelCache
from hybridge.trt_plugins.kernels.ptx_registers import UnsetUse, unset_uses
from hybridge.trt_plugins.kernels.resource_report import ResourceReport
from hybridge.trt_plugins.kernels.source import KernelSource

# A thread's number is loaded under a condition; a function that branches is called on it whatever the condition was.
CODE = """
#include "unset/params.cuh"
__device__ float log_sum(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
struct Scalars {
    float dt, A;
    __device__ void load(const Unset& p) { dt = p.x[threadIdx.x]; A = p.x[threadIdx.x + 32]; }
    __device__ float step() const { return expf(A * log_sum(dt)); }
};
extern "C" __global__ void unset(const __grid_constant__ Unset p) {
    Scalars scalars INITIAL;
    if (p.count > 0) scalars.load(p);
    const float step = scalars.step();
    if (p.count > 0) p.y[threadIdx.x] = step;
}
"""
PARAMS = "#pragma once\nstruct Unset {\n    const float* x;\n    float* y;\n    int count;\n};\n"


def ptx(body: str) -> str:
    return f".visible .entry kernel(\n.param .u64 p\n)\n.maxntid 32, 1, 1\n{{\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("setp.eq.s32 %p1, %r1, 0;\n@%p1 bra $L1;\n$L1:", [UnsetUse(("%p1",), "@%p1 bra $L1")]),
        ("mov.u32 %r1, 5;\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 bra $L1;\n$L1:", []),
        ("add.s32 %r2, %r1, 1;\nst.global.u32 [%rd1], %r2;", [UnsetUse(("%rd1",), "st.global.u32 [%rd1], %r2")]),
        ("mov.u64 %rd1, 0;\nadd.s32 %r2, %r1, 1;\nst.global.u32 [%rd1+4], %r2;", []),
        (  # written on one of two paths
            "mov.u32 %r2, %tid.x;\nsetp.eq.s32 %p1, %r2, 0;\n@%p1 bra $L1;\nmov.u32 %r1, 1;\n$L1:\n"
            "setp.eq.s32 %p2, %r1, 0;\n@!%p2 bra $L2;\n$L2:",
            [UnsetUse(("%p2",), "@!%p2 bra $L2")],
        ),
        (  # written on both
            "mov.u32 %r2, %tid.x;\nsetp.eq.s32 %p1, %r2, 0;\n@%p1 bra $L1;\nmov.u32 %r1, 1;\nbra.uni $L3;\n$L1:\n"
            "mov.u32 %r1, 2;\n$L3:\nsetp.eq.s32 %p2, %r1, 0;\n@%p2 bra $L2;\n$L2:",
            [],
        ),
        ("mov.u32 %r2, %tid.x;\nsetp.eq.s32 %p1, %r2, 0;\n@%p1 mov.u32 %r1, 1;\nld.global.u32 %r3, [%r1];",
         [UnsetUse(("%r1",), "ld.global.u32 %r3, [%r1]")]),
        (  # inline assembly declares a name of the compiler again
            "mov.pred %p1, 0;\n{\n.reg .pred %p1;\nsetp.eq.s32 %p1, 1, %r5;\n@%p1 bra $L1;\n}\n$L1:\n@%p1 bra $L2;\n"
            "$L2:",
            [UnsetUse(("%p1@1",), "@%p1 bra $L1")],
        ),
        ("ld.global.v2.u32 {%r1, %r2}, [p];\nsetp.lt.s32 %p1, %r2, %r1;\n@%p1 bra $L1;\n$L1:", []),
        (  # a loop that sets what the next turn uses
            "mov.u32 %r2, 0;\n$L1:\nsetp.gt.s32 %p1, %r2, 3;\n@%p1 bra $L2;\nadd.s32 %r2, %r2, 1;\nbra.uni $L1;\n$L2:",
            [],
        ),
    ],
)  # fmt: skip
def test_branches_and_addresses_on_unset_registers(body: str, found: list[UnsetUse]) -> None:
    assert list(unset_uses(ptx(body), "kernel")) == found


def test_ptx_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(EngineError, match="kernel other"):
        unset_uses(ptx(""), "other")
    with pytest.raises(EngineError, match=r"label \$L9"):
        unset_uses(ptx("bra.uni $L9;"), "kernel")


@pytest.fixture
def unset_source(tmp_path, monkeypatch):
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    folder = tmp_path / "plugin_src"
    (folder / "unset").mkdir(parents=True)
    (folder / "unset/unset.cu").write_text(CODE)
    (folder / "unset/params.cuh").write_text(PARAMS)
    for module in ("source", "compiler"):
        monkeypatch.setattr(f"hybridge.trt_plugins.kernels.{module}.source_folder", lambda: folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("initial", "faulty"), [("", True), ("= {}", False)], ids=["unset", "set"])
def test_a_value_that_is_loaded_under_a_condition_and_used_without(unset_source, initial, faulty, architecture):
    source = KernelSource("unset/unset.cu", "unset", (("INITIAL", initial),), hot=False)
    for _ in range(2):  # compiled, then from the disk
        problem = check._compile((source, architecture)).problem
        assert (problem is not None) is faulty
        assert not faulty or ("bra" in problem and "set its variable on every path" in problem)


def test_a_kernel_without_ptx_does_not_pass(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled = CompiledKernel(b"code", ResourceReport(1, 0, 0, 0))
    monkeypatch.setattr(check, "KernelCache", lambda: KernelCache(compile_=lambda *_: compiled, version=lambda: "1"))
    assert "expected PTX" in check._compile((next(iter(sources())), "sm_90a")).problem


@pytest.mark.parametrize("file", ["update_ssm_state/decode_lanes.cu", "mamba2_conv_scan/cluster_step.cu"])
def test_one_token_kernels_branch_on_no_unset_register(file):
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    source = next(source for source in sources() if source.file == file and ("SOFTPLUS", "1") in source.defines)
    assert unset_uses(compile_kernel(source, "sm_90a").ptx, source.entry) == ()
