"""Parameter structs of the kernels, read from the CUDA headers that declare them.

A kernel takes one struct by value. Its only declaration is in plugin_src, in a plain form that this module reads
(one field a line, no arrays, no bit fields, no expressions):

    struct Rows {
        const int* context_lengths;  // a comment
        int rows;
    };

The result is a ``ctypes.Structure`` with the alignment rules of C, which CUDA shares.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.kernels.source import reached_files, source_folder

_SCALARS: dict[str, type] = {
    "int": ctypes.c_int32,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_STRUCT = re.compile(r"^struct\s+(\w+)\s*\{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*(?:const\s+)?(\w+)\s*(\*?)\s*(?:__restrict__\s+)?(\w+)\s*;\s*(?://.*)?$")


@cache
def struct_type(file: str, name: str) -> type[ctypes.Structure]:
    """The struct ``name`` declared in ``file`` (relative to plugin_src) or in a header that it includes.

    HybridgeError when there is no such struct or a line of it is not in the plain form.
    """
    for path in reached_files(file):
        for match in _STRUCT.finditer((source_folder() / path).read_text(encoding="utf-8")):
            if match[1] == name:
                return type(name, (ctypes.Structure,), {"_fields_": _fields(path, name, match[2])})
    raise HybridgeError(f"{file}: expected a plain struct {name}, found none; declare it there or in a header of it")


def _fields(path: str, struct: str, body: str) -> list[tuple[str, type]]:
    fields: list[tuple[str, type]] = []
    for line in body.splitlines():
        if not line.strip() or line.strip().startswith("//"):
            continue
        match = _FIELD.match(line)
        if match is None:
            raise HybridgeError(f"{path}: expected one plain field a line in struct {struct}, found {line.strip()!r}")
        kind, star, field = match.groups()
        fields.append((field, ctypes.c_void_p if star else _SCALARS.get(kind) or struct_type(path, kind)))
    return fields
