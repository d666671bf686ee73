"""Dense KV caches as blocks: what the kernels of paged attention need to read and write them where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hybridge.runtime.engines.torch.device import TorchDevice

# Positions of a block; small caches have small ones, as their room is a multiple of it.
_BLOCK, _SMALL_BLOCK = 128, 16


@dataclass(frozen=True, eq=False)
class CacheBlocks:
    """The rows of one step, each of which has the blocks of its part of the caches.

    size: positions of a block. table: [rows, blocks] int32. bounds: [rows + 1] int32, the first token of each row.
    lengths: [rows] int32, tokens of each row after the step, with padding. slots: [rows] int32, where the new token of
        a decode step goes; -1: it has no place.
    """

    size: int
    table: torch.Tensor
    bounds: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor | None = None

    @classmethod
    def of(
        cls, device: TorchDevice, rows: int, max_seq: int, bucket: int, lengths: torch.Tensor, slots: torch.Tensor
    ) -> CacheBlocks:
        """Those of a decode step in the first ``bucket`` of ``max_seq`` positions."""
        with device.active():
            bounds = torch.arange(rows + 1, dtype=torch.int32, device=device.torch)
            return cls(cache_block_size(max_seq), _table(device, rows, max_seq, bucket), bounds, lengths, slots)

    @classmethod
    def of_prompts(cls, device: TorchDevice, tokens: int, past: Sequence[int], max_seq: int) -> CacheBlocks | None:
        """Those of a step of ``tokens`` tokens a row; None where with padding a row ends after ``max_seq`` positions.

        past: cached tokens of each row. Where they differ the host waits for the device, to which it copies them.
        """
        ends = [cached + tokens for cached in past]
        if max(ends) > max_seq:
            return None
        rows = len(ends)
        with device.active():
            bounds = torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device=device.torch)
            lengths = torch.full((rows,), ends[0], dtype=torch.int32, device=device.torch)
            if min(ends) != max(ends):
                lengths = torch.tensor(ends, dtype=torch.int32, device=device.torch)
            return cls(cache_block_size(max_seq), _table(device, rows, max_seq, max(ends)), bounds, lengths)

    def pool(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The caches of ``block_caches`` as the pool [parts, blocks, block, heads, head_dim] that they are.

        One cache that is both gives a pool of one part.
        """
        rows, heads, _, head_dim = key.shape
        room = key.stride(0) // (heads * head_dim)
        block = self.size * heads * head_dim
        shape = (1 if value is key else 2, rows * room // self.size, self.size, heads, head_dim)
        strides = (rows * key.stride(0), block, heads * head_dim, head_dim, 1)
        apart = value.storage_offset() - key.storage_offset()
        assert value is key or (apart == strides[0] and key.stride() == value.stride())
        return key.as_strided(shape, strides)


def _table(device: TorchDevice, rows: int, max_seq: int, bucket: int) -> torch.Tensor:
    """[rows, blocks] int32: the blocks of each row that hold its first ``bucket`` positions."""
    size = cache_block_size(max_seq)
    first = torch.arange(rows, dtype=torch.int32, device=device.torch)[:, None] * (room_of(max_seq) // size)
    return first + torch.arange(-(-bucket // size), dtype=torch.int32, device=device.torch)


def cache_block_size(max_seq: int) -> int:
    """Positions of a block of caches with room for ``max_seq`` positions."""
    return _BLOCK if max_seq >= _BLOCK else _SMALL_BLOCK


def room_of(max_seq: int) -> int:
    """Positions of a row in memory: whole blocks."""
    return -(-max_seq // cache_block_size(max_seq)) * cache_block_size(max_seq)


def block_caches(
    device: TorchDevice, parts: int, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """``parts`` zeroed caches, of keys and of values, [rows, heads, max_seq, head_dim] each, in one piece of memory.

    In memory the heads of a position are stored together and the positions of a row are whole blocks.
    """
    rows, heads, max_seq, head_dim = shape
    memory = device.zeros(parts, rows, room_of(max_seq), heads, head_dim, dtype=dtype)
    return memory[:, :, :max_seq].transpose(2, 3).unbind()
