"""Sampling parameters: how a request chooses its tokens and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridge.artifact import limits
from hybridge.artifact.errors import RequestError
from hybridge.artifact.settings import setting
from hybridge.runtime.sampling.allowed_tokens import AllowedTokens
from hybridge.runtime.sampling.checks import biases, boolean, callables, failure, integer, number, texts, token_ids
from hybridge.runtime.sampling.names import own_names

if TYPE_CHECKING:
    from dataclasses import InitVar

# (token ids of the answer so far, logits [vocab] float32, which may be changed in place) -> logits [vocab].
LogitsProcessor = Callable[[tuple[int, ...], np.ndarray], np.ndarray]
# The ranges of OpenAI's API. To forbid or force tokens, use bad_words and allowed_token_ids.
MOST_BIAS, MOST_PENALTY = 100.0, 2.0
# Limit of the repetition penalty: useful ones are from 0.5 to 2, and no logit overflows.
MOST_FACTOR = 100.0
# Limit of the length penalty: useful ones are from 0 to 2, and no length to this power overflows.
MOST_POWER = 10.0
# Parameters that beam search does not support.
_NOT_WITH_BEAMS = (
    "temperature",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "allowed_tokens",
    "logits_processors",
    "stop",
    "logprobs",
    "prompt_logprobs",
)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request. The default is greedy decoding.

    temperature         0 is greedy (argmax; the filters below then have no effect)
    top_k               keep the k most likely tokens (ties with the k-th stay); 0 or -1 turns it off
    top_p               keep the smallest set of most likely tokens whose probability reaches top_p; 1 turns it off
    min_p               keep tokens at least min_p times as likely as the most likely one; 0 turns it off
    repetition_penalty  from 0.01 to 100; above 1 makes tokens of the prompt and of the answer less likely, 1 is off
    seed                two runs with one seed sample the same tokens, whatever else is in the batch; None is random
    max_new_tokens      stop with "length" after this many tokens; None leaves the choice to the caller. Also
                        accepted as max_tokens
    stop                texts that end the generation; the text returned ends before them
    stop_token_ids      tokens that end the generation, in addition to the model's EOS tokens
    ignore_eos          generate past the model's EOS tokens
    logprobs            None: off; n: log-probability of each token and of the n most likely ones, of the model's own
                        distribution, before all of the steps below
    skip_special_tokens leave special tokens such as BOS out of the text
    n                   answers to one prompt; answer i uses seed + i
    beam_width          search for the n most likely answers with this many beams, greedily; 0 turns it off
    length_penalty      from -10 to 10: a beam's log-probability is divided by its length to this power; below 1 favours
                        short answers
    speculative_tokens  maximum draft tokens per step if the engine speculates; 0 turns speculation off, None leaves
                        it to the engine (docs/explanation/speculation.md)
    min_tokens          EOS and stop tokens are not sampled, and stop texts are ignored, for that many tokens
    presence_penalty    from -2 to 2, subtracted from the logits of tokens that the answer already contains
    frequency_penalty   from -2 to 2, subtracted once for each time that the answer contains the token
    logit_bias          {token id: number from -100 to 100} added to the logits
    bad_words           texts to avoid: the last token of each is not sampled where the answer ends with the tokens
                        before it; each text counts with and without a leading space
    allowed_token_ids   only these tokens are sampled; None allows all
    allowed_tokens      callable without arguments that makes an ``AllowedTokens`` for each answer: a bit mask before
                        each token, such as that of a grammar; None allows all
    logits_processors   callables (token_ids, logits) -> logits: the token ids of the answer so far, and logits [vocab]
                        float32, which may be changed in place. Called once for each sampled token
    include_stop_str_in_output  the returned text ends with the stop text, or the text of the stop token
    prompt_logprobs     like logprobs, for each token of the prompt; turns off the prefix cache for this request

    Order of the steps: allowed_token_ids, allowed_tokens, bad_words, min_tokens, logit_bias, logits_processors,
    repetition_penalty, frequency_penalty, presence_penalty, temperature, top_k, top_p, min_p, sample. Frequency and
    presence penalties count tokens of the answer (as in vLLM), the repetition penalty those of prompt and answer (as in
    transformers).
    A single text or token id is accepted as a list of one. RequestError names an invalid value.
    """

    temperature: float = setting(0.0, "0 is greedy.", metavar="X")
    top_k: int = setting(0, "Keep the k most likely tokens; 0 is off.", metavar="K")
    top_p: float = setting(1.0, "Keep the most likely tokens up to this total probability; 1 is off.", metavar="P")
    min_p: float = setting(0.0, "Minimum probability relative to the most likely token; 0 is off.", metavar="P")
    repetition_penalty: float = setting(1.0, "Above 1 avoids repetition; 1 is off.", metavar="X")
    seed: int | None = setting(None, "The same seed gives the same tokens.", metavar="N", shown_default="random")
    max_new_tokens: int | None = setting(
        None, "Stop after this many tokens, or at max_seq_len.", metavar="N", shown_default="256"
    )
    stop: Sequence[str] = setting((), "Stop at this text (repeatable).", metavar="TEXT")
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    n: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    speculative_tokens: int | None = None
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    bad_words: Sequence[str] = ()
    allowed_token_ids: Sequence[int] | None = None
    allowed_tokens: Callable[[], AllowedTokens] | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    include_stop_str_in_output: bool = False
    prompt_logprobs: int | None = None
    if TYPE_CHECKING:
        max_tokens: InitVar[int | None] = None

        def __post_init__(self, max_tokens: int | None) -> None: ...

    else:

        def __post_init__(self) -> None:
            self._normalise()

        @property
        def max_tokens(self) -> int | None:
            """``max_new_tokens`` under vLLM's name."""
            return self.max_new_tokens

    def _normalise(self) -> None:
        normal = {**self._numbers(), **self._lists()}
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        self._check_min_tokens()
        if self.beam_width:
            self._check_beams()

    def with_max_new_tokens(self, most: int) -> SamplingParams:
        """A copy with ``max_new_tokens``; checks this alone, since lists of token ids may be long."""
        changed = copy(self)
        object.__setattr__(changed, "max_new_tokens", integer("max_new_tokens", most, 1))
        changed._check_min_tokens()
        return changed

    def _check_min_tokens(self) -> None:
        if self.max_new_tokens is not None and self.min_tokens > self.max_new_tokens:
            raise failure("min_tokens", f"at most the {self.max_new_tokens} of max_new_tokens", self.min_tokens)

    def _numbers(self) -> dict[str, object]:
        most = limits.REQUEST_LOGPROBS
        power = (f"from {-MOST_POWER:g} to {MOST_POWER:g}", lambda v: abs(v) <= MOST_POWER)
        factor = (f"from {1 / MOST_FACTOR:g} to {MOST_FACTOR:g}", lambda v: 1 / MOST_FACTOR <= v <= MOST_FACTOR)
        penalty = (f"from {-MOST_PENALTY:g} to {MOST_PENALTY:g}", lambda v: abs(v) <= MOST_PENALTY)
        return {
            "temperature": number("temperature", self.temperature, "at least 0", lambda v: v >= 0),
            "top_k": max(0, integer("top_k", self.top_k, -1)),
            "top_p": number("top_p", self.top_p, "above 0 and at most 1", lambda v: 0 < v <= 1),
            "min_p": number("min_p", self.min_p, "from 0 to 1", lambda v: 0 <= v <= 1),
            "repetition_penalty": number("repetition_penalty", self.repetition_penalty, *factor),
            "presence_penalty": number("presence_penalty", self.presence_penalty, *penalty),
            "frequency_penalty": number("frequency_penalty", self.frequency_penalty, *penalty),
            "length_penalty": number("length_penalty", self.length_penalty, *power),
            "seed": _optional("seed", self.seed, 0, 2**128 - 1),
            "max_new_tokens": _optional("max_new_tokens", self.max_new_tokens, 1),
            "min_tokens": integer("min_tokens", self.min_tokens, 0),
            "logprobs": _optional("logprobs", self.logprobs, 0, most),
            "prompt_logprobs": _optional("prompt_logprobs", self.prompt_logprobs, 0, most),
            "speculative_tokens": _optional("speculative_tokens", self.speculative_tokens, 0),
            "n": integer("n", self.n, 1, limits.REQUEST_ANSWERS),
            "beam_width": integer("beam_width", self.beam_width, 0, limits.REQUEST_ANSWERS),
            "ignore_eos": boolean("ignore_eos", self.ignore_eos),
            "skip_special_tokens": boolean("skip_special_tokens", self.skip_special_tokens),
            "include_stop_str_in_output": boolean("include_stop_str_in_output", self.include_stop_str_in_output),
        }

    def _lists(self) -> dict[str, object]:
        allowed = self.allowed_token_ids
        if allowed is not None and not (
            allowed := token_ids("allowed_token_ids", allowed, limits.REQUEST_ALLOWED_TOKENS)
        ):
            raise failure("allowed_token_ids", "at least one token id, or None for all", self.allowed_token_ids)
        if self.allowed_tokens is not None and not callable(self.allowed_tokens):
            raise failure("allowed_tokens", "a callable, or None", self.allowed_tokens)
        words, characters = limits.REQUEST_BAD_WORDS, limits.REQUEST_BAD_WORD_CHARACTERS
        processors = callables("logits_processors", self.logits_processors, limits.REQUEST_LOGITS_PROCESSORS)
        return {
            "stop": texts("stop", self.stop, limits.REQUEST_STOP_TEXTS, limits.REQUEST_STOP_CHARACTERS),
            "stop_token_ids": token_ids("stop_token_ids", self.stop_token_ids, limits.REQUEST_STOP_TOKENS),
            "logit_bias": biases("logit_bias", self.logit_bias, limits.REQUEST_BIASED_TOKENS, MOST_BIAS),
            "bad_words": texts("bad_words", self.bad_words, words, characters),
            "allowed_token_ids": None if allowed is None else tuple(dict.fromkeys(allowed)),
            "logits_processors": processors,
        }

    def _check_beams(self) -> None:
        if self.n > self.beam_width:
            raise failure("n", f"at most the {self.beam_width} beams", self.n)
        defaults = {field.name: field.default for field in fields(self)}
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name) != defaults[name]:
                raise RequestError(f"beam_width: expected beams without {name}, found both: leave one of them out")

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0

    @property
    def edits_logits(self) -> bool:
        """True when anything before the temperature changes the logits."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.logit_bias
            or self.bad_words
            or self.allowed_token_ids is not None
            or self.allowed_tokens is not None
            or self.logits_processors
        )

    @property
    def plain_greedy(self) -> bool:
        """True when the request needs only the argmax of the unchanged logits."""
        return self.greedy and not self.edits_logits and self.logprobs is None and not self.beam_width


def _optional(name: str, value: Any, minimum: int, maximum: int | None = None) -> int | None:
    return None if value is None else integer(name, value, minimum, maximum)


def _accept_other_names(cls: type[SamplingParams]) -> None:
    """Make the constructor of ``cls`` accept the parameter names of other libraries."""
    own, names = cls.__init__, [field.name for field in fields(cls)]

    @wraps(own)
    def init(self: SamplingParams, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **own_names(kwargs, names))

    cls.__init__ = init  # type: ignore[method-assign]


_accept_other_names(SamplingParams)
