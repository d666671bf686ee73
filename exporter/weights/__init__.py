"""Putting weights into an artifact: shards linked or copied, derived tensors written."""

from hybridge.exporter.weights.derived import write_derived
from hybridge.exporter.weights.placing import place_shards

__all__ = ["place_shards", "write_derived"]
