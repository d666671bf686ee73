"""Errors of the pools."""

from __future__ import annotations


class PoolError(RuntimeError):
    """A caller broke a rule of a pool: a double free, a reference to a free block, more taken than there is."""
