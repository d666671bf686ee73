"""Weights of an artifact: shards linked in place, changed tensors written, initializers that point into both."""

from exporter.weights.derived import DERIVED_FILE, DerivedTensor, write_derived
from exporter.weights.external_data import external_initializer
from exporter.weights.placement import WEIGHTS_FOLDER, PlacedFile, PlacedWeights, place_weights, weight_records

__all__ = [
    "DERIVED_FILE",
    "WEIGHTS_FOLDER",
    "DerivedTensor",
    "PlacedFile",
    "PlacedWeights",
    "external_initializer",
    "place_weights",
    "weight_records",
    "write_derived",
]
