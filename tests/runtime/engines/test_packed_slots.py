"""Packed slots hold a state's values rounded to 8 bits, in the pools of both engines on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS, Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.names import conv_state, kv_pool, recurrent_state
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.packed_rows import EXACT, FP8, INT8
from hybridge.runtime.engines.packed_state import PackedState, packed_bytes
from hybridge.runtime.engines.pool_sizes import PoolSizes

SLOTS, PACKED = 4, 3
SIZES = {"onnxruntime": DType.FLOAT32, "torch": DType.FLOAT32, "torch-16": DType.BFLOAT16}


def specs(dtype: DType) -> tuple[Binding, ...]:
    """KV, two layers alike with odd sizes, one of another shape, and what a convolution keeps."""
    return (
        Binding(kv_pool(0), dtype, (2, NUM_BLOCKS, BLOCK_SIZE, 2, 4), "a"),
        Binding(conv_state(0), dtype, (NUM_SLOTS, 5, 3), "b"),
        Binding(recurrent_state(0), dtype, (NUM_SLOTS, 3, 5, 17), "c"),
        Binding(conv_state(1), dtype, (NUM_SLOTS, 7, 3), "d"),
        Binding(recurrent_state(1), dtype, (NUM_SLOTS, 3, 5, 17), "e"),
        Binding(recurrent_state(2), dtype, (NUM_SLOTS, 1, 9, 64), "f"),
    )


class World:
    """The pools of one engine, and how their tensors are read and written as float64 in the declared layouts."""

    def __init__(self, engine: str, kind: str) -> None:
        self.kind, self.specs = kind, specs(SIZES[engine])
        sizes = PoolSizes(2, 4, SLOTS, PACKED, kind)
        if engine == "onnxruntime":
            # Sessions may hold states the other way around.
            self.pools: Any = ArrayPools(self.specs, {recurrent_state(1): (0, 1, 3, 2)}, sizes)
            self.views: Mapping[str, Any] = {spec.name: self.pools.view(spec.name) for spec in self.specs}
            return
        torch = pytest.importorskip("torch", reason="the torch engine needs torch")
        from hybridge.runtime.engines.torch.device import TorchDevice
        from hybridge.runtime.engines.torch.paged_pools import TorchPools

        self.pools, self.views = TorchPools(self.specs, sizes, TorchDevice("cpu")), {}
        for tensor in self.pools.tensors.values():
            tensor.fill_(torch.nan)
        for part in (*(layers.factors for layers in self.pools.packed.layers), *self.pools.packed.exact.values()):
            part.fill_(torch.nan)

    def write(self, slot: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Put ``arrays`` into a slot; what the pools' type makes of them."""
        kv = {spec.name: np.zeros((2, 0, 4, 2, 4)) for spec in self.specs if spec.grows}
        with np.errstate(over="ignore"):
            copy = self.pools.copy_from_arrays({**kv, **{name: array[None] for name, array in arrays.items()}}, 0, 1)
        self.pools.swap_in(copy, [], [slot])
        return self.read(slot)

    def read(self, slot: int) -> dict[str, np.ndarray]:
        arrays = self.pools.arrays_from_copy(self.pools.swap_out([], [slot]))
        return {spec.name: arrays[spec.name][0].astype(np.float64) for spec in self.specs if not spec.grows}


@pytest.fixture(params=[(engine, kind) for engine in SIZES for kind in (INT8, FP8)], ids=lambda pair: "-".join(pair))
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


def state(world: World, seed: int) -> dict[str, np.ndarray]:
    """Rows of very different sizes, one of zeros among them."""
    rng, arrays = np.random.default_rng(seed), {}
    for spec in world.specs:
        if not spec.grows:
            shape = spec.shape[1:]
            arrays[spec.name] = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4, (*shape[:-1], 1))
            arrays[spec.name][0, 1] = 0
    return arrays


def most_off(exact: np.ndarray, kind: str, narrow: bool) -> np.ndarray:
    """What each number of ``exact`` [..., row] may be off by, once packed: half a step of its type."""
    largest = np.abs(exact).max(axis=-1, keepdims=True)
    if kind == INT8:
        packed = np.broadcast_to(largest / 254, exact.shape)
    else:  # four bits of mantissa, with the one that is not stored; the smallest step is 2 ** -9
        packed = np.maximum(np.abs(exact) / 16, largest / 448 * 2.0**-10)
    return packed * (1 + 1e-5) + np.abs(exact) * (2.0**-8 if narrow else 2.0**-22)


def test_a_packed_state_is_off_by_half_a_step_at_most(world: World) -> None:
    written = {slot: world.write(slot, state(world, slot)) for slot in (0, 2)}
    world.pools.pack_slots([2, 0], [0, 2])
    world.pools.unpack_slots([0, 2, 0], [1, 0, 3])
    narrow = world.specs[0].dtype is DType.BFLOAT16
    for slot, source in ((1, 2), (0, 0), (3, 2), (2, 2)):
        for name, found in world.read(slot).items():
            exact = written[source][name]
            if "conv" in name or slot == 2:
                assert (found == exact).all(), name
                continue
            assert (np.abs(found - exact) <= most_off(exact, world.kind, narrow)).all(), name
            assert (found[0, 1] == 0).all() and (found != exact).any()


def test_packing_again_changes_nothing(world: World) -> None:
    world.write(0, state(world, 5))
    world.pools.pack_slots([0], [1])
    world.pools.unpack_slots([1], [2])
    world.pools.pack_slots([2], [0])
    first, again = (world.pools.packed_out(slot) for slot in (1, 0))
    if world.specs[0].dtype is DType.BFLOAT16:  # its rows were rounded to 16 bits in between
        off = [
            np.abs(again.packed[n].values.astype(float) - first.packed[n].values.astype(float)) for n in first.packed
        ]
        assert max(each.max() for each in off) <= {INT8: 1, FP8: 32}[world.kind]
        return
    for name, rows in first.packed.items():
        assert (again.packed[name].values.view(np.uint8) == rows.values.view(np.uint8)).all()
        assert np.allclose(again.packed[name].factors, rows.factors, rtol=1e-6, atol=0)


def test_a_copy_in_host_memory_is_the_slot_bit_for_bit(world: World) -> None:
    world.write(1, state(world, 6))
    world.pools.pack_slots([1], [2])
    copy = world.pools.packed_out(2)
    assert copy.nbytes == sum(packed_bytes(spec) for spec in world.specs if not spec.grows)
    world.write(0, state(world, 1))
    world.pools.pack_slots([0], [2])  # the copy is one
    world.pools.packed_in(copy, 0)
    other = world.pools.packed_out(0)
    for name, rows in copy.packed.items():
        assert (other.packed[name].values.view(np.uint8) == rows.values.view(np.uint8)).all()
        assert (other.packed[name].factors == rows.factors).all()
    assert all((other.exact[name] == array).all() for name, array in copy.exact.items())
    world.pools.unpack_slots([0], [3])
    found, arrays = world.read(3), copy.arrays()
    assert all((found[name] == arrays[name][0].astype(np.float64)).all() for name in arrays)
    # The host's rounding of the same state differs by at most the last bit.
    exact = world.pools.arrays_from_copy(world.pools.swap_out([], [1]))
    made = PackedState.of(exact, world.kind)
    for name, rows in made.packed.items():
        assert (rows.values.view(np.uint8) == copy.packed[name].values.view(np.uint8)).all()
        assert (rows.factors == copy.packed[name].factors).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_comes_back_as_nan_alone(world: World, bad: float) -> None:
    arrays = state(world, 7)
    arrays[recurrent_state(1)][2, 3, 4] = bad
    written = world.write(0, arrays)
    world.pools.pack_slots([0], [0])
    world.pools.unpack_slots([0], [1])
    found = world.read(1)[recurrent_state(1)]
    assert np.isnan(found[2, 3]).all()
    found[2, 3] = written[recurrent_state(1)][2, 3] = 0
    assert np.isfinite(found).all()


def test_the_largest_and_smallest_numbers(world: World) -> None:
    arrays = state(world, 8)
    rows = arrays[recurrent_state(0)]
    rows[0, 0], rows[1, 1], rows[2, 2] = 3e38, 1e-44, 1e-38
    rows[0, 0, 1:] = -3e38
    written = world.write(0, arrays)[recurrent_state(0)]
    world.pools.pack_slots([0], [0])
    world.pools.unpack_slots([0], [1])
    found = world.read(1)[recurrent_state(0)]
    assert (np.abs(found[0, 0] / written[0, 0] - 1) <= 2.0**-7).all()
    # Numbers below the smallest normal one may become 0, and no more than that.
    assert (np.abs(found[1, 1]) <= 2e-44).all() and (np.abs(found[2, 2] - written[2, 2]) <= 2e-40).all()


def test_bytes_of_a_packed_slot() -> None:
    wide = Binding(recurrent_state(7), DType.FLOAT32, (NUM_SLOTS, 128, 64, 128), "x")
    assert packed_bytes(wide) == 128 * 64 * (128 + 4) and wide.unit_bytes / packed_bytes(wide) == pytest.approx(
        3.88, 1e-3
    )
    conv = Binding(conv_state(0), DType.BFLOAT16, (NUM_SLOTS, 6, 4), "y")
    assert packed_bytes(conv) == conv.unit_bytes
    assert not ArrayPools(specs(DType.FLOAT32), {}, PoolSizes(1, 4, 2)).packed.names
    assert PoolSizes(1, 4, 2).packed == EXACT
