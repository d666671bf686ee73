"""Parameter structs read from CUDA headers: layout as a C++ compiler lays them out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.kernels import structs
from hybridge.trt_plugins.kernels.source import source_folder

HEADER = """#pragma once
#include "common/rows.cuh"
struct Inner {
    int a;  // first
    const void* __restrict__ p;
};
struct Outer {
    // a comment line
    float scale;
    Inner inner;
    int64_t stride;
    int last;
    Rows rows;
};
struct Bad {
    int values[4];
};
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "common").symlink_to(source_folder() / "common")
    (tmp_path / "params.cuh").write_text(HEADER)
    monkeypatch.setattr(structs, "source_folder", lambda: tmp_path)
    monkeypatch.setattr("hybridge.trt_plugins.kernels.source.source_folder", lambda: tmp_path)
    structs.struct_type.cache_clear()
    yield tmp_path
    structs.struct_type.cache_clear()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to ask a C++ compiler for the layout")
def test_layout_is_the_compilers(folder):
    fields = ["scale", "inner.a", "inner.p", "stride", "last", "rows.query_start_loc", "rows.time"]
    offsets = ", ".join(f"offsetof(Outer, {name})" for name in fields)
    body = (
        "#define __device__\n#define __forceinline__ inline\n"
        "#include <cstddef>\n#include <initializer_list>\n#include <cstdint>\n#include <cstdio>\n"
        f'#include "params.cuh"\nint main() {{ for (size_t v : {{sizeof(Outer), {offsets}}}) printf("%zu ", v); }}\n'
    )
    (folder / "main.cpp").write_text(body)
    subprocess.run(["g++", "-std=c++17", "-I.", "main.cpp", "-o", "main"], cwd=folder, check=True)
    expected = [int(text) for text in subprocess.check_output([str(folder / "main")], text=True).split()]
    outer = structs.struct_type("params.cuh", "Outer")
    assert [ctypes.sizeof(outer), *(_offset(outer, name) for name in fields)] == expected


def _offset(kind, path):
    offset = 0
    for name in path.split("."):
        offset += getattr(kind, name).offset
        kind = dict(kind._fields_)[name]
    return offset


def test_a_field_that_is_not_plain_is_refused(folder):
    with pytest.raises(
        HybridgeError, match=r"params\.cuh: expected one plain field a line in struct Bad, found 'int v"
    ):
        structs.struct_type("params.cuh", "Bad")


def test_an_unknown_struct_is_refused(folder):
    with pytest.raises(HybridgeError, match="expected a plain struct Missing, found none"):
        structs.struct_type("params.cuh", "Missing")
