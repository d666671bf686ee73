"""State of the batch rows: KV caches, recurrent and convolution states, and snapshots of single rows."""

from runtime.caches.hybrid import HybridCacheManager, LayerRoute
from runtime.caches.kv import KVCacheManager
from runtime.caches.mamba import MambaCacheManager
from runtime.caches.snapshot import KVSnapshot, MambaSnapshot, RowSnapshot

__all__ = [
    "HybridCacheManager",
    "KVCacheManager",
    "KVSnapshot",
    "LayerRoute",
    "MambaCacheManager",
    "MambaSnapshot",
    "RowSnapshot",
]
