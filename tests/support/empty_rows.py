"""Packed calls with rows of no tokens among others, over pools inside of memory where every foreign write is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

Launch = Callable[["PackedCall", list[torch.Tensor]], None]
# Around each pool: a write at a wild address often lies some megabytes away from the right one.
_GUARD_BYTES = 24 << 20


@dataclass(frozen=True)
class PackedCall:
    """Tokens of ``lengths`` rows whose states lie in ``slots`` of ``pools``.

    tokens: tensors [tokens, ...], y last, which may have more tokens than the rows. weights: what all rows share.
    launch: runs the kernels on a call and its pools in place.
    """

    lengths: tuple[int, ...]
    slots: tuple[int, ...]
    tokens: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor | None, ...]
    pools: tuple[torch.Tensor, ...]
    launch: Launch

    @property
    def starts(self) -> torch.Tensor:
        return torch.tensor([0, *torch.tensor(self.lengths).cumsum(0)], dtype=torch.int32, device="cuda")

    @property
    def indices(self) -> torch.Tensor:
        return torch.tensor(self.slots, dtype=torch.int32, device="cuda")

    def with_padding_for_empty_rows(self) -> PackedCall:
        """As many rows, for the same kernels, where those of no tokens have no slot."""
        pairs = zip(self.slots, self.lengths, strict=True)
        return replace(self, slots=tuple(slot if length > 0 else -1 for slot, length in pairs))


def run(call: PackedCall) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """y and the pools afterwards. AssertionError when a byte changed that belongs to no row with tokens."""
    guarded = [_guarded(pool) for pool in call.pools]
    before = [memory.clone() for memory, _ in guarded]
    y = torch.full_like(call.tokens[-1], float("nan"))
    _fill_registers()
    call.launch(replace(call, tokens=(*call.tokens[:-1], y)), [pool for _, pool in guarded])
    torch.cuda.synchronize()
    for (memory, pool), old in zip(guarded, before, strict=True):
        first, size = _GUARD_BYTES, pool[0].numel() * pool.element_size()
        written = torch.zeros(len(memory), dtype=torch.bool, device="cuda")
        for slot, length in zip(call.slots, call.lengths, strict=True):
            if slot >= 0 and length > 0:
                written[first + slot * size : first + (slot + 1) * size] = True
        assert torch.equal(memory[~written], old[~written]), "memory of no row with tokens changed"
    return y, [pool.clone() for _, pool in guarded]


def check(call: PackedCall, times: int = 3) -> None:
    """Rows of no tokens change nothing: y and states are bit for bit those of a call where such rows are padding."""
    expected = run(call.with_padding_for_empty_rows())
    for _ in range(times):
        y, pools = run(call)
        used = sum(call.lengths)
        assert not y[:used].isnan().any() and y[used:].isnan().all(), "tokens of rows, and no others, are written"
        assert torch.equal(y[:used], expected[0][:used]), "y"
        for found, wanted in zip(pools, expected[1], strict=True):
            assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)), "a state"


def random_bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Finite numbers, a different pattern in every slot."""
    if dtype in (torch.int8, torch.uint8):
        return torch.randint(0, 120, shape, dtype=dtype, device="cuda")
    return torch.randn(*shape, device="cuda").to(dtype)


def interleaved(lengths: Sequence[int]) -> tuple[int, ...]:
    """The rows with an empty one before, between and behind them."""
    return (0, *(length for pair in ((n, 0) for n in lengths) for length in pair))


def _guarded(pool: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes with a copy of ``pool`` in the middle, and that copy."""
    size = pool.numel() * pool.element_size()
    memory = torch.randint(0, 256, (size + 2 * _GUARD_BYTES,), dtype=torch.uint8, device="cuda")
    inside = memory[_GUARD_BYTES : _GUARD_BYTES + size].view(pool.dtype).view(pool.shape)
    inside.copy_(pool)
    return memory, inside


def _fill_registers() -> None:
    """Work whose numbers stay in the registers of all multiprocessors: what a kernel does not set is not zero."""
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    torch.sin(a @ a).sum()
