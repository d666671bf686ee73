"""One call of ``gated_delta_rule`` with its sizes, as its kernels take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import Memory, OpCall, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.decode_tile import ACCESS_BYTES, access_bytes
from hybridge.trt_plugins.kernels.ops.rows import row_and_token_stride

_LARGEST_GRID_YZ = 65535


@dataclass(frozen=True)
class DeltaCall:
    """One call with its sizes. time: an upper bound of the tokens of a row."""

    call: OpCall
    rows: int
    time: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, call: OpCall) -> DeltaCall:
        """UnsupportedError for sizes and layouts outside of the kernels' limits."""
        q, beta = call.input("q"), call.input("beta")
        (_, value_heads, key_size, value_size), key_heads = call.input("state").shape, q.shape[-2]
        dims = {"key_heads": key_heads, "value_heads": value_heads, "key_size": key_size, "value_size": value_size}
        call.spec.check_kernel_dims(dims)
        rows = call.packed.rows if call.packed is not None else beta.shape[0]
        dense_time = beta.shape[1] if len(beta.shape) == 3 else 1
        time = call.packed.max_row_tokens if call.packed is not None else dense_time
        found = cls(call, rows, time, key_heads, value_heads, key_size, value_size)
        found._check_layouts()
        if max(rows, key_heads) > _LARGEST_GRID_YZ:
            raise UnsupportedError(
                f"{call.spec.name}: expected at most {_LARGEST_GRID_YZ} rows and key heads, found {rows} and "
                f"{key_heads}: split the call"
            )
        return found

    def _check_layouts(self) -> None:
        call = self.call
        tails = {"q": 1, "k": 1, "v": 1, "g": 2, "beta": 1, "state": 3}
        for name, axes in tails.items():
            call.input(name).need_dense_tail(name, axes)
        for name, layout, axes in (("o", call.outputs[0], 1), ("state_out", call.outputs[1], 3)):
            layout.need_dense_tail(name, axes)
        if access_bytes(self.state, call.outputs[1], axes=1) < ACCESS_BYTES:
            raise UnsupportedError(
                f"{call.spec.name}: expected states that start at multiples of {ACCESS_BYTES} bytes, found strides "
                f"{list(self.state.strides)} and {list(call.outputs[1].strides)}: align the slots"
            )

    @property
    def dtype(self) -> DType:
        return self.call.input("v").dtype

    @property
    def state(self) -> TensorLayout:
        return self.call.input("state")

    @property
    def channel_decay(self) -> bool:
        return self.call.attributes["decay"] == "key_channel"

    @property
    def normed(self) -> bool:
        return bool(self.call.attributes["use_qk_l2norm"])

    @property
    def scale(self) -> float:
        return float(self.call.attributes["scale"]) or self.key_size**-0.5

    def token_access_bytes(self, *names: str) -> int:
        """Bytes of the widest access to the sizes of q, k, v or o that stays aligned at every token and head."""
        layouts = [self.call.outputs[0] if name == "o" else self.call.input(name) for name in names]
        return min(access_bytes(layout, axes=len(layout.shape) - 1) for layout in layouts)

    def fill(self, params: Any) -> None:
        """The fields that all kernels' structs share: strides of rows, tokens, heads and slots, and the factor of q."""
        for name, trailing in (("q", 2), ("k", 2), ("v", 2), ("o", 2), ("g", 2), ("beta", 1)):
            layout = self.call.outputs[0] if name == "o" else self.call.input(name)
            row, token = row_and_token_stride(self.call, layout, trailing)
            setattr(params, f"{name}_row", row)
            setattr(params, f"{name}_token", token)
            if name in "qkvo":
                setattr(params, f"{name}_head", layout.strides[-2])
        params.state_slot = self.state.strides[0]
        params.state_out_slot = self.call.outputs[1].strides[0]
        params.values_per_key = self.value_heads // self.key_heads
        params.scale = self.scale

    def inputs(self, *names: str) -> dict[str, PointerSource]:
        """Pointers of the inputs ``names``."""
        return {name: PointerSource(Memory.INPUT, self.call.spec.input_index(name)) for name in names}

    def outputs(self) -> dict[str, PointerSource]:
        """Pointers of o and state_out."""
        return {"o": PointerSource(Memory.OUTPUT, 0), "state_out": PointerSource(Memory.OUTPUT, 1)}
