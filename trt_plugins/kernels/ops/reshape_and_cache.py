"""The kernels of ``reshape_and_cache``: a copy of rows to the slots of their tokens, rounded for pools of e4m3."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import access_bytes
from hybridge.trt_plugins.kernels.source import CUDA_TYPES, KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "reshape_and_cache/copy_rows.cu"
ENTRY = "reshape_and_cache"
FP8_FILE = "reshape_and_cache/quantize_rows.cu"
FP8_ENTRY = "reshape_and_cache_fp8"
_RUN, _WARPS, _LARGEST_HEAD = 4, 4, 576
_THREADS = 128
_LARGEST_GRID_YZ = 65535
_ITEMS = (2, 4)  # bytes of an element
_ACCESSES = (2, 4, 8, 16)


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``call``, which writes the tokens' slots of the pool and leaves the rest of it.

    The pool is updated in place: where kv_pool_out is other memory, only the new tokens' slots of it are written.
    UnsupportedError unless head_dim is contiguous in every tensor and both pools have the same strides.
    """
    key, value, pool_out = call.input("key"), call.input("value"), call.outputs[0]
    _check_layouts(call)
    tokens, heads, head_dim = key.shape
    access = _access(head_dim, key, value, pool_out)
    params = _params(call, FILE)
    params.runs = head_dim * key.dtype.itemsize // access
    source = _source(key.dtype.itemsize, access)
    grid = (-(-heads * params.runs // _THREADS), min(tokens, _LARGEST_GRID_YZ), pool_out.shape[0])
    overlap = device.is_hopper_or_later
    launch = KernelLaunch(source, grid, (_THREADS, 1, 1), params, _pointers(call), overlap=overlap)
    return CallPlan((launch,), name=source.label)


def plan_fp8(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The same for a pool of e4m3 with scales. UnsupportedError as there, and for heads that accesses do not divide."""
    key, value, pool = call.input("key"), call.input("value"), call.outputs[0]
    _check_layouts(call)
    call.input("kv_scales").need_dense_tail("kv_scales", 1)
    tokens, heads, head_dim = key.shape
    aligned = all(access_bytes(x, axes=2) >= _RUN * x.dtype.itemsize for x in (key, value))
    if head_dim % _RUN or head_dim > _LARGEST_HEAD or not aligned or access_bytes(pool, axes=4) < _RUN:
        raise UnsupportedError(
            f"{call.spec.name}: expected heads of at most {_LARGEST_HEAD} in multiples of {_RUN} that start at "
            f"multiples of {_RUN} elements, found head_dim {head_dim} at strides {list(key.strides)}: align them"
        )
    source = _fp8_source(key.dtype, head_dim)
    params = _params(call, FP8_FILE)
    params.scales_values, params.scales_block, params.scales_head = call.outputs[1].strides[:3]
    grid = (-(-pool.shape[0] * heads // _WARPS), min(tokens, _LARGEST_GRID_YZ), 1)
    overlap = device.is_hopper_or_later
    pointers = _pointers(call) | {"kv_scales": PointerSource(Memory.OUTPUT, 1)}
    launch = KernelLaunch(source, grid, (32 * _WARPS, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name=source.label)


def _check_layouts(call: OpCall) -> None:
    for spec, layout in zip(call.spec.inputs, call.inputs, strict=True):
        if layout is not None:
            layout.need_dense_tail(spec.name, 1)
    for output, found in zip(call.spec.outputs, call.outputs, strict=True):
        given = call.inputs[call.spec.output_source(output)]
        assert given is not None
        found.need_dense_tail(output.name, 1)
        if given.strides != found.strides:
            name = output.name.removesuffix("_out")
            raise UnsupportedError(
                f"{call.spec.name}: expected {output.name} to be {name}, found strides {list(found.strides)} and "
                f"{list(given.strides)}: update the pool in place"
            )


def _params(call: OpCall, file: str) -> Any:
    key, value, pool = call.input("key"), call.input("value"), call.outputs[0]
    params: Any = struct_type(file, "ReshapeAndCache")()
    params.key_token, params.key_head = key.strides[:2]
    params.value_token, params.value_head = value.strides[:2]
    params.pool_values, params.pool_block, params.pool_slot, params.pool_head = pool.strides[:4]
    params.tokens, params.heads, params.block_size = *key.shape[:2], pool.shape[2]
    params.all_heads = pool.shape[0] * params.heads
    return params


def _pointers(call: OpCall) -> dict[str, PointerSource]:
    pointers = {name: PointerSource(Memory.INPUT, call.spec.input_index(name)) for name in _READ}
    return pointers | {"kv_pool": PointerSource(Memory.OUTPUT, 0)}


def sources_fp8() -> Iterator[KernelSource]:
    """Every type at usual head dims."""
    for dtype, head_dim in itertools.product(CUDA_TYPES, (64, 80, 128, 256)):
        yield _fp8_source(dtype, head_dim)


def _fp8_source(dtype: DType, head_dim: int) -> KernelSource:
    defines = {"DATA_T": dtype, "HEAD_DIM": head_dim, "WARPS": _WARPS}
    return KernelSource.of(FP8_FILE, FP8_ENTRY, defines)


def sources() -> Iterator[KernelSource]:
    """All variants: the bytes of an element, and of an access."""
    for item in _ITEMS:
        for access in _ACCESSES:
            if access >= item:
                yield _source(item, access)


_READ = ("key", "value", "slot_mapping")


def _access(head_dim: int, *layouts: TensorLayout) -> int:
    """Bytes of the widest access that divides a head and stays aligned at every head of every tensor."""
    widest = min(access_bytes(layout, axes=len(layout.shape) - 1) for layout in layouts)
    nbytes = head_dim * layouts[0].dtype.itemsize
    return max(access for access in _ACCESSES if access <= widest and nbytes % access == 0)


def _source(item: int, access: int) -> KernelSource:
    defines = {"ITEM": item, "ACCESS": access, "THREADS": _THREADS}
    return KernelSource.of(FILE, ENTRY, defines)
