"""From logits to the next token: parameters, filters, draws and log-probabilities, in NumPy."""

from hybridge.runtime.sampling.logprobs import PromptLogprobs, TokenLogprobs
from hybridge.runtime.sampling.params import SamplingParams
from hybridge.runtime.sampling.rejection import Guess
from hybridge.runtime.sampling.rows import DrawError, Drawn, sample_rows
from hybridge.runtime.sampling.sampler import Sampler, best_token, best_tokens

__all__ = [
    "DrawError",
    "Drawn",
    "Guess",
    "PromptLogprobs",
    "Sampler",
    "SamplingParams",
    "TokenLogprobs",
    "best_token",
    "best_tokens",
    "sample_rows",
]
