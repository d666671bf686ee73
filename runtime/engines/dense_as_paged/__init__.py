"""Dense engines behind the interface of paged ones, so that one loop serves every artifact."""

from hybridge.runtime.engines.dense_as_paged.engine import DenseAsPaged

__all__ = ["DenseAsPaged"]
