"""One call of ``paged_attention`` with its sizes, as its kernels take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, access_bytes
from hybridge.trt_plugins.specs.fp8_kv import KV_SCALES, has_kv_scales

_WIDEST_PLAIN = 256  # head that the kernels for heads of any type take


@dataclass(frozen=True)
class PagedCall:
    """One call with its sizes. group: query heads of a KV head; longest: most positions that a row can have."""

    call: OpCall
    tokens: int
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    max_blocks: int

    @classmethod
    def of(cls, call: OpCall) -> PagedCall:
        """UnsupportedError for sizes and layouts outside of the kernels' limits.

        query, y: heads at any stride, head_dim contiguous. kv_pool: head_dim contiguous, all else at any stride that
        is a multiple of 16 bytes.
        """
        tokens, heads, head_dim = call.input("query").shape
        block_size, kv_heads = call.input("kv_pool").shape[2:4]
        rows, max_blocks = call.input("block_table").shape
        found = cls(call, tokens, rows, heads, kv_heads, head_dim, block_size, max_blocks)
        dims = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
        call.spec.check_kernel_dims(dims)
        found._check_layouts()
        return found

    def _check_layouts(self) -> None:
        named = {name: self.call.input(name) for name in ("query", "kv_pool", "block_table")} | {"y": self.y}
        for name, layout in named.items():
            layout.need_dense_tail(name, 1)
        for name in ("query", "kv_pool", "y"):
            if access_bytes(named[name], axes=len(named[name].shape) - 1) < ACCESS_BYTES:
                raise UnsupportedError(
                    f"{self.call.spec.name}: expected heads of {name} that start at multiples of {ACCESS_BYTES} "
                    f"bytes, found strides {list(named[name].strides)}: align them"
                )
        if self.is_fp8:
            self._check_fp8()

    def _check_fp8(self) -> None:
        if self.dtype.itemsize != 2:
            raise UnsupportedError(
                f"{self.call.spec.name}: expected queries of 16 bits over keys and values of e4m3, found "
                f"{self.dtype.value}: export with another `dtype`"
            )
        scales = self.call.input(KV_SCALES.name)
        scales.need_dense_tail(KV_SCALES.name, 1)
        if access_bytes(scales, axes=3) < ACCESS_BYTES:
            raise UnsupportedError(
                f"{self.call.spec.name}: expected scales of heads that start at multiples of {ACCESS_BYTES} bytes, "
                f"found strides {list(scales.strides)}: align them"
            )

    @property
    def dtype(self) -> DType:
        return self.call.input("query").dtype

    @property
    def is_fp8(self) -> bool:
        """Whether the pool is of e4m3 with scales."""
        return has_kv_scales(self.call.spec)

    @property
    def is_wide(self) -> bool:
        """Whether the call is for the kernels for wide heads."""
        return self.head_dim > _WIDEST_PLAIN

    @property
    def y(self) -> TensorLayout:
        return self.call.outputs[0]

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def sliding_window(self) -> int:
        return int(self.call.attributes["sliding_window"])

    @property
    def longest(self) -> int:
        return self.max_blocks * self.block_size

    @property
    def most_row_tokens(self) -> int:
        """An upper bound of a row's new tokens."""
        packed = self.call.packed
        return min(packed.max_row_tokens, self.tokens) if packed is not None else self.tokens

    @property
    def decodes_every_token(self) -> bool:
        """Whether the decode kernel takes each token on its own, so that no row is left for the prefill kernel.

        With as many rows as tokens nearly every row has one token, and the few exceptions (a row of two beside one of
        none) cost less this way than a second launch.
        """
        packed = self.call.packed
        return self.tokens <= self.rows and (packed is None or packed.max_row_tokens > 1)

    @property
    def has_prefill(self) -> bool:
        """Whether rows of several tokens are possible that the decode kernel leaves out."""
        return self.most_row_tokens > 1 and not self.decodes_every_token

    def fill(self, params: Any) -> None:
        """The fields of the struct PagedAttention except for its pointers."""
        query, pool = self.call.input("query"), self.call.input("kv_pool")
        params.query_token, params.query_head = query.strides[:2]
        params.pool_block, params.pool_slot, params.pool_head = pool.strides[1:4]
        # From keys to values: nothing where they are the same.
        params.pool_values = pool.strides[0] if pool.shape[0] > 1 else 0
        if self.is_fp8:
            scales = self.call.input(KV_SCALES.name)
            params.scales_block, params.scales_head = scales.strides[1:3]
            params.scales_values = scales.strides[0] if pool.shape[0] > 1 else 0
        params.table_row = self.call.input("block_table").strides[0]
        params.y_token, params.y_head = self.y.strides[:2]
        params.rows, params.heads, params.kv_heads, params.group = self.rows, self.heads, self.kv_heads, self.group
        params.max_blocks, params.block_size = self.max_blocks, self.block_size
        params.sliding_window = self.sliding_window
        params.scale = float(self.call.attributes["scale"]) or self.head_dim**-0.5
        params.softcap = float(self.call.attributes["softcap"])

    def pointers(self, prefix: str = "") -> dict[str, PointerSource]:
        """Pointers of the struct, whose fields are called ``prefix`` and their name."""
        spec = self.call.spec
        found = {
            f"{prefix}{tensor.name}": PointerSource(Memory.INPUT, index)
            for index, tensor in enumerate(spec.inputs)
            if self.call.inputs[index] is not None
        }
        return found | {f"{prefix}y": PointerSource(Memory.OUTPUT, 0)}
