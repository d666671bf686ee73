"""The kernel of ``reshape_and_cache``: a copy of rows to the slots of their tokens."""

from __future__ import annotations

from collections.abc import Iterator

from artifact.errors import UnsupportedError
from trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, OpCall, PointerSource
from trt_plugins.kernels.layout import TensorLayout
from trt_plugins.kernels.ops.decode_tile import access_bytes
from trt_plugins.kernels.source import KernelSource
from trt_plugins.kernels.structs import struct_type

FILE = "reshape_and_cache/copy_rows.cu"
ENTRY = "reshape_and_cache"
_THREADS = 128
_LARGEST_GRID_YZ = 65535
_OVERLAP_SINCE = (9, 0)
_ITEMS = (2, 4)  # bytes of an element
_ACCESSES = (2, 4, 8, 16)


def plan(call: OpCall, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``call``, which writes the tokens' slots of the pool and leaves the rest of it.

    The pool is updated in place: where kv_pool_out is other memory, only the new tokens' slots of it are written.
    UnsupportedError unless head_dim is contiguous in every tensor and both pools have the same strides.
    """
    key, value, pool, pool_out = call.input("key"), call.input("value"), call.input("kv_pool"), call.outputs[0]
    for name, layout in (("key", key), ("value", value), ("kv_pool", pool), ("kv_pool_out", pool_out)):
        layout.need_dense_tail(name, 1)
    if pool.strides != pool_out.strides:
        raise UnsupportedError(
            f"{call.spec.name}: expected kv_pool_out to be kv_pool, found strides {list(pool_out.strides)} and "
            f"{list(pool.strides)}: update the pool in place"
        )
    tokens, heads, head_dim = key.shape
    access = _access(head_dim, key, value, pool_out)
    params = struct_type(FILE, "ReshapeAndCache")()
    params.key_token, params.key_head = key.strides[:2]
    params.value_token, params.value_head = value.strides[:2]
    params.pool_values, params.pool_block, params.pool_slot, params.pool_head = pool_out.strides[:4]
    params.tokens, params.heads, params.block_size = tokens, heads, pool.shape[2]
    params.runs = head_dim * key.dtype.itemsize // access
    source = _source(key.dtype.itemsize, access)
    grid = (-(-heads * params.runs // _THREADS), min(tokens, _LARGEST_GRID_YZ), 2)
    pointers = {name: PointerSource(Memory.INPUT, call.spec.input_index(name)) for name in _READ}
    pointers["kv_pool"] = PointerSource(Memory.OUTPUT, 0)
    overlap = device.capability >= _OVERLAP_SINCE
    launch = KernelLaunch(source, grid, (_THREADS, 1, 1), params, pointers, overlap=overlap)
    return CallPlan((launch,), name=source.label)


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
    return KernelSource(FILE, ENTRY, tuple((name, str(value)) for name, value in defines.items()))
