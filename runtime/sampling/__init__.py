"""From logits to the next token: parameters, filters, draws and log-probabilities, in NumPy."""

from runtime.sampling.logprobs import PromptLogprobs, TokenLogprobs
from runtime.sampling.params import SamplingParams
from runtime.sampling.rejection import Guess
from runtime.sampling.rows import DrawError, Drawn, sample_rows
from runtime.sampling.sampler import Sampler, best_tokens

__all__ = [
    "DrawError",
    "Drawn",
    "Guess",
    "PromptLogprobs",
    "Sampler",
    "SamplingParams",
    "TokenLogprobs",
    "best_tokens",
    "sample_rows",
]
