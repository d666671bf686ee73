"""From logits to the next token: parameters, filters, draws and log-probabilities, in NumPy."""

from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams
from runtime.sampling.sampler import Sampler, best_tokens

__all__ = ["Sampler", "SamplingParams", "TokenLogprobs", "best_tokens"]
