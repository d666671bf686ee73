"""Blocks and slots of a dense engine in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridge.artifact.bindings import BLOCK_SIZE, MAX_SEQ, NUM_BLOCKS, NUM_SLOTS, Binding
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense_as_paged.contents import Arrays
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.pool_arrays import pool_array


class ContentCopy(HostCopy):
    """Arrays by state name, none where nothing is stored; KV is cut to the tokens in its block."""

    def __init__(self, blocks: Sequence[tuple[Arrays, int]], slots: Sequence[Arrays]) -> None:
        self.kv, self.states = tuple(blocks), tuple(slots)
        self.blocks, self.slots = len(self.kv), len(self.states)

    @property
    def nbytes(self) -> int:
        every = [*(arrays for arrays, _ in self.kv), *self.states]
        return sum(array.nbytes for arrays in every for array in arrays.values())


def pool_specs(specs: Sequence[Binding]) -> tuple[Binding, ...]:
    """How ``pool_arrays`` shows the states ``specs`` of a dense engine: KV by tokens, one block after the other."""
    return tuple(
        Binding(spec.name, spec.dtype, (1, NUM_BLOCKS, BLOCK_SIZE, spec.shape[1], spec.shape[3]), spec.replaced_by)
        if spec.grows
        else Binding(spec.name, spec.dtype, (NUM_SLOTS, *spec.shape[1:]), spec.replaced_by)
        for spec in specs
    )


def pool_arrays(specs: Sequence[Binding], copy: ContentCopy) -> dict[str, np.ndarray]:
    """KV [1, blocks, tokens, kv_heads, head_dim] of as many tokens as the fullest block, and states [slots, ...]."""
    longest, found = max((length for _, length in copy.kv), default=0), {}
    for spec in specs:
        if spec.grows:
            shape = spec.resolve(batch=len(copy.kv), **{MAX_SEQ: longest})
            array = np.zeros(shape, spec.dtype.numpy)
            for index, (arrays, length) in enumerate(copy.kv):
                if spec.name in arrays:
                    array[index, :, :length] = arrays[spec.name]
            found[spec.name] = array.swapaxes(1, 2)[None]
        else:
            array = np.zeros(spec.resolve(batch=len(copy.states)), spec.dtype.numpy)
            for index, arrays in enumerate(copy.states):
                if spec.name in arrays:
                    array[index] = arrays[spec.name]
            found[spec.name] = array
    return found


def copy_from_pool_arrays(
    specs: Sequence[Binding], arrays: Mapping[str, np.ndarray], blocks: int, slots: int
) -> ContentCopy:
    """The inverse of ``pool_arrays``; EngineError when shapes or magnitudes do not fit."""
    kv: list[tuple[dict[str, np.ndarray], int]] = [({}, 0) for _ in range(blocks)]
    states: list[dict[str, np.ndarray]] = [{} for _ in range(slots)]
    for spec, shown in zip(specs, pool_specs(specs), strict=True):
        array = arrays.get(spec.name)
        count = blocks if spec.grows else slots
        length = array.shape[2] if array is not None and array.ndim == 5 else 0
        axes = {NUM_BLOCKS: count, BLOCK_SIZE: length, NUM_SLOTS: count}
        if array is None or array.shape != shown.resolve(**axes):
            found = "none" if array is None else str(list(array.shape))
            raise EngineError(f"{spec.name}: expected an array of {list(shown.resolve(**axes))}, found {found}")
        converted = pool_array(spec.name, array, spec.dtype)
        for index in range(count):
            part = converted[0, index].swapaxes(0, 1) if spec.grows else converted[index]
            part = np.array(part, order="C")
            part.setflags(write=False)
            if spec.grows:
                kv[index][0][spec.name] = part
                kv[index] = kv[index][0], length
            else:
                states[index][spec.name] = part
    return ContentCopy(kv, states)
