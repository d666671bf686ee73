"""Dense KV caches as pages: what the kernels of paged attention need to read and write them where they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hybridge.runtime.engines.torch.device import TorchDevice

# Positions of a page; small caches have small ones, as their room is a multiple of it.
_PAGE, _SMALL_PAGE = 128, 16


@dataclass(frozen=True, eq=False)
class CachePages:
    """The rows of one decode step, each of which has the pages of its part of the caches.

    size: positions of a page. table: [rows, pages] int32. bounds: [rows + 1] int32, one token a row.
    lengths: [rows] int32, tokens of each row after the step. slots: [rows] int32, where the new token goes; -1: it has
        no place.
    """

    size: int
    table: torch.Tensor
    bounds: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def of(
        cls, device: TorchDevice, rows: int, max_seq: int, bucket: int, lengths: torch.Tensor, slots: torch.Tensor
    ) -> CachePages:
        """The pages that hold the first ``bucket`` of ``max_seq`` positions."""
        size = page_size(max_seq)
        with device.active():
            first = torch.arange(rows, dtype=torch.int32, device=device.torch)[:, None] * (room_of(max_seq) // size)
            table = first + torch.arange(-(-bucket // size), dtype=torch.int32, device=device.torch)
            bounds = torch.arange(rows + 1, dtype=torch.int32, device=device.torch)
        return cls(size, table, bounds, lengths, slots)

    def pool(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Two caches of ``paged_caches`` as the pool [2, blocks, page, heads, head_dim] that they are."""
        rows, heads, _, head_dim = key.shape
        room = key.stride(0) // (heads * head_dim)
        page = self.size * heads * head_dim
        shape = (2, rows * room // self.size, self.size, heads, head_dim)
        strides = (rows * key.stride(0), page, heads * head_dim, head_dim, 1)
        assert value.storage_offset() - key.storage_offset() == strides[0] and key.stride() == value.stride()
        return key.as_strided(shape, strides)


def page_size(max_seq: int) -> int:
    """Positions of a page of caches with room for ``max_seq`` positions."""
    return _PAGE if max_seq >= _PAGE else _SMALL_PAGE


def room_of(max_seq: int) -> int:
    """Positions of a row in memory: whole pages."""
    return -(-max_seq // page_size(max_seq)) * page_size(max_seq)


def paged_caches(device: TorchDevice, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Zeroed caches of keys and of values, [rows, heads, max_seq, head_dim] each, in one piece of memory.

    In memory the heads of a position lie together and the positions of a row are whole pages.
    """
    rows, heads, max_seq, head_dim = shape
    memory = device.zeros(2, rows, room_of(max_seq), heads, head_dim, dtype=dtype)
    key, value = memory[:, :, :max_seq].transpose(2, 3)
    return key, value
