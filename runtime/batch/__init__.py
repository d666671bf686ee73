"""Rows of a running batch: joined, fed, finished and compacted without disturbing each other."""

from hybridge.runtime.batch.row_batch import RowBatch

__all__ = ["RowBatch"]
