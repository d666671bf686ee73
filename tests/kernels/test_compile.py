"""Compilation, its report and its cache. The compiler is NVRTC itself; it needs no GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.trt_plugins.kernels import catalog, check
from hybridge.trt_plugins.kernels import compiler as compiler_module
from hybridge.trt_plugins.kernels import source as source_module
from hybridge.trt_plugins.kernels.compiler import CompiledKernel, compile_kernel
from hybridge.trt_plugins.kernels.disk_cache import KernelCache
from hybridge.trt_plugins.kernels.resource_report import ResourceReport, report_from_log
from hybridge.trt_plugins.kernels.source import KernelSource, reached_files

pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")

SCALE = """
#include "common/element.cuh"
#include "scale/params.cuh"
extern "C" __global__ void scale(const __grid_constant__ Scale p) {
    p.y[threadIdx.x] = from_float<DATA_T>(to_float(p.x[threadIdx.x]) * FACTOR);
}
"""
PARAMS = "#pragma once\nstruct Scale {\n    const DATA_T* x;\n    DATA_T* y;\n};\n"
SPILLS = """
extern "C" __global__ void spills(float* x, int n) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i * n];
    int j = n & 63;
    for (int i = 0; i < n; i++) { j = (j * 7 + i) & 63; a[j] += x[i]; }
    x[threadIdx.x] = a[j];
}
"""
HALF = KernelSource("scale/scale.cu", "scale", (("DATA_T", "__half"), ("FACTOR", "2.0f")))


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A source folder with two kernels and the project's common headers."""
    folder = tmp_path / "plugin_src"
    (folder / "scale").mkdir(parents=True)
    (folder / "common").symlink_to(source_module.source_folder() / "common")
    (folder / "scale/scale.cu").write_text(SCALE)
    (folder / "scale/params.cuh").write_text(PARAMS)
    (folder / "scale/spills.cu").write_text(SPILLS)
    for module in ("hybridge.trt_plugins.kernels.source", "hybridge.trt_plugins.kernels.compiler"):
        monkeypatch.setattr(f"{module}.source_folder", lambda: folder)
    return folder


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_121"])
def test_compiles_without_a_gpu(sources, architecture):
    compiled = compile_kernel(HALF, architecture)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.report.registers > 0
    assert compiled.report.problem is None


def test_a_kernel_of_every_file_is_complete():
    """NVRTC's front end, without the slow assembler, takes one kernel of each file with its macros."""
    core, folder = compiler_module._cuda_core(), source_module.source_folder()
    kernels = {source.file: source for source in catalog.sources()}
    assert len(kernels) > 40
    for file, source in kernels.items():
        options = core.ProgramOptions(
            name=file,
            arch="sm_90a",
            std=compiler_module.STANDARD,
            include_path=[str(folder), *compiler_module.include_folders()],
            define_macro=list(source.defines) or None,
            link_time_optimization=True,
            no_cache=True,
        )
        core.Program((folder / file).read_text(), "c++", options).compile("ltoir")


def test_reports_a_stack_in_local_memory(sources):
    report = compile_kernel(KernelSource("scale/spills.cu", "spills"), "sm_87").report
    assert report.stack_bytes >= 256
    assert report.problem == f"keeps {report.stack_bytes} bytes per thread in local memory"


def test_a_compile_error_names_kernel_and_architecture(sources):
    (sources / "scale/scale.cu").write_text("this is not CUDA")
    with pytest.raises(EngineError, match=r"NVRTC cannot compile scale\[DATA_T=__half.*for sm_86: .*error"):
        compile_kernel(HALF, "sm_86")


def test_the_log_of_another_kernel_is_no_report():
    assert report_from_log("ptxas info : Compiling entry function 'k' for 'sm_90a'", "other") is None


def test_a_kernel_compiles_where_the_compiler_reports_nothing(sources, monkeypatch):
    """As NVRTC did for a program that another process had compiled just before."""
    monkeypatch.setattr(compiler_module, "report_from_log", lambda log, entry: None)
    compiled = compile_kernel(HALF, "sm_90a")
    assert compiled.cubin.startswith(b"\x7fELF") and compiled.report is None


def test_the_compilers_own_cache_is_off(sources, monkeypatch):
    """Cached results come without a report."""
    core, options = compiler_module._cuda_core(), []

    def kept(**given):
        options.append(given)
        return core.ProgramOptions(**given)

    double = SimpleNamespace(ProgramOptions=kept, Program=core.Program)
    monkeypatch.setattr(compiler_module, "_cuda_core", lambda: double)
    assert compile_kernel(HALF, "sm_90a").report is not None
    assert options[0]["no_cache"] is True


def test_a_missing_header_is_named(sources):
    (sources / "scale/params.cuh").unlink()
    with pytest.raises(HybridgeError, match=r"scale/params\.cuh"):
        reached_files(HALF.file)


class Counting:
    """A compiler that returns the number of its calls as code."""

    def __init__(self):
        self.calls = 0

    def __call__(self, source, architecture):
        self.calls += 1
        return CompiledKernel(b"code %d" % self.calls, ResourceReport(10, 0, 0, 0))


@pytest.fixture
def cache(sources, tmp_path):
    compiler = Counting()
    return KernelCache(tmp_path / "cache", compiler, lambda: "13.5"), compiler


def test_the_second_request_reads_the_disk(cache):
    kernels, compiler = cache
    assert kernels.get(HALF, "sm_87") == kernels.get(HALF, "sm_87")
    assert compiler.calls == 1


def test_architecture_macros_and_compiler_are_part_of_the_key(cache, tmp_path):
    kernels, compiler = cache
    kernels.get(HALF, "sm_87")
    kernels.get(HALF, "sm_89")
    kernels.get(KernelSource(HALF.file, HALF.entry, (("DATA_T", "float"), ("FACTOR", "2.0f"))), "sm_87")
    KernelCache(tmp_path / "cache", compiler, lambda: "13.6").get(HALF, "sm_87")
    assert compiler.calls == 4


def test_a_changed_header_is_compiled_again(cache, sources):
    kernels, compiler = cache
    kernels.get(HALF, "sm_87")
    (sources / "scale/params.cuh").write_text(PARAMS + "// changed\n")
    kernels.get(HALF, "sm_87")
    assert compiler.calls == 2


class Silent:
    """A compiler that reports resources from its second call on."""

    def __init__(self):
        self.calls = 0

    def __call__(self, source, architecture):
        self.calls += 1
        return CompiledKernel(b"code", ResourceReport(10, 0, 0, 0) if self.calls > 1 else None)


def test_an_entry_without_a_report_serves_requests_without_one(sources, tmp_path):
    compiler = Silent()
    kernels = KernelCache(tmp_path / "cache", compiler, lambda: "13.5")
    assert [kernels.get(HALF, "sm_87").report for _ in range(2)] == [None, None]
    assert compiler.calls == 1
    assert kernels.get(HALF, "sm_87", with_report=True).report is not None
    assert kernels.get(HALF, "sm_87").report is not None and compiler.calls == 2


def test_the_check_fails_without_a_report(monkeypatch):
    monkeypatch.setattr(check, "KernelCache", lambda: SimpleNamespace(get=lambda *_, **__: CompiledKernel(b"", None)))
    finding = check._compile((HALF, "sm_87"))
    assert finding.problem == "the assembler reported no resources"


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"{}\n" + b, lambda b: b[::-1]])
def test_a_damaged_entry_is_compiled_again(cache, damage):
    kernels, compiler = cache
    kernels.get(HALF, "sm_87")
    path = kernels.path(HALF, "sm_87")
    path.write_bytes(damage(path.read_bytes()))
    assert kernels.get(HALF, "sm_87").cubin == b"code 2"
    assert kernels.get(HALF, "sm_87").cubin == b"code 2"
    assert compiler.calls == 2


def test_a_folder_that_cannot_be_made_only_costs_time_and_warns_once(sources, tmp_path):
    (tmp_path / "file").write_text("")
    compiler = Counting()
    kernels = KernelCache(tmp_path / "file" / "cache", compiler, lambda: "13.5")
    remedy = r"file/cache: compiled kernels cannot be kept \(Not a directory\).*set XDG_CACHE_HOME"
    with pytest.warns(RuntimeWarning, match=remedy) as caught:
        assert kernels.get(HALF, "sm_87").cubin == b"code 1"
        assert kernels.get(HALF, "sm_87").cubin == b"code 2"
    assert len(caught) == 1
    assert list(tmp_path.glob("**/.*")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such owners and modes")
def test_a_folder_of_another_user_is_not_used(cache, monkeypatch):
    kernels, _ = cache
    kernels.get(HALF, "sm_87")
    owner = kernels.folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        # Every user accepts entries of root's folder.
        assert kernels.get(HALF, "sm_87").cubin == b"code 1"
        os.chown(kernels.folder, 7, 7)
        owner = 7
    with pytest.warns(RuntimeWarning, match=rf"expected a folder that you own, found owner {owner}\).*XDG_CACHE"):
        assert kernels.get(HALF, "sm_87").cubin == b"code 2"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(EngineError, match="expected a home folder for compiled kernels, found none: set XDG"):
        KernelCache()
