"""From prompts to generations: requests, the batched loop, cached prefixes and results."""

from hybridge.runtime.generation.dense_streams import DenseStreams
from hybridge.runtime.generation.loop import generate_pieces
from hybridge.runtime.generation.prefix import Prefix, PrefixStore
from hybridge.runtime.generation.request import Request, RequestLimits
from hybridge.runtime.generation.results import Generation, Piece, Timings
from hybridge.runtime.generation.sequence import Sequence

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
