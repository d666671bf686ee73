"""From logits to the next token: parameters, filters, sampling and log-probabilities, in NumPy."""

from hybridge.runtime.sampling.allowed_tokens import AllowedTokens
from hybridge.runtime.sampling.logprobs import PromptLogprobs, TokenLogprobs
from hybridge.runtime.sampling.params import SamplingParams
from hybridge.runtime.sampling.rejection import DraftToken
from hybridge.runtime.sampling.rows import DrawError, sample_rows
from hybridge.runtime.sampling.sampler import Sampler, best_token, best_tokens
from hybridge.runtime.sampling.token_sampling import CHOSEN_LATER, NO_SAMPLING, SampledToken, TokenSampling

__all__ = [
    "CHOSEN_LATER",
    "NO_SAMPLING",
    "AllowedTokens",
    "DraftToken",
    "DrawError",
    "PromptLogprobs",
    "SampledToken",
    "Sampler",
    "SamplingParams",
    "TokenLogprobs",
    "TokenSampling",
    "best_token",
    "best_tokens",
    "sample_rows",
]
