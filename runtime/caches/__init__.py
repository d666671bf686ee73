"""State of the batch rows: KV caches, recurrent and convolution states, and snapshots of single rows."""

from hybridge.runtime.caches.hybrid import HybridCacheManager, LayerRoute
from hybridge.runtime.caches.kv import KVCacheManager
from hybridge.runtime.caches.mamba import MambaCacheManager
from hybridge.runtime.caches.snapshot import KVSnapshot, MambaSnapshot, RowSnapshot

__all__ = [
    "HybridCacheManager",
    "KVCacheManager",
    "KVSnapshot",
    "LayerRoute",
    "MambaCacheManager",
    "MambaSnapshot",
    "RowSnapshot",
]
