"""From prompts to generations: requests, the batched loop, cached prefixes and results."""

from runtime.generation.dense_streams import DenseStreams
from runtime.generation.loop import generate_pieces
from runtime.generation.prefix import Prefix, PrefixStore
from runtime.generation.request import Request, RequestLimits
from runtime.generation.results import Generation, Piece, Timings
from runtime.generation.sequence import Sequence

__all__ = [
    "DenseStreams",
    "Generation",
    "Piece",
    "Prefix",
    "PrefixStore",
    "Request",
    "RequestLimits",
    "Sequence",
    "Timings",
    "generate_pieces",
]
