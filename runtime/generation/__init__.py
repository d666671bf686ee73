"""From prompts to generations: requests, the tokens of one answer, and results."""

from hybridge.runtime.generation.request import Request, RequestLimits
from hybridge.runtime.generation.results import Generation, Piece, Timings
from hybridge.runtime.generation.sequence import ANY_TOKEN, GeneratedSequence

__all__ = [
    "ANY_TOKEN",
    "GeneratedSequence",
    "Generation",
    "Piece",
    "Request",
    "RequestLimits",
    "Timings",
]
