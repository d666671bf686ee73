"""How one request chooses its tokens and where it stops."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from artifact.errors import RequestError


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of one request. The default is greedy decoding.

    temperature         0 is greedy (argmax; the filters below then have no effect)
    top_k               keep the k most likely tokens (ties with the k-th stay); 0 turns it off
    top_p               keep the smallest set of most likely tokens whose probability reaches top_p; 1 turns it off
    min_p               keep tokens at least min_p times as likely as the most likely one; 0 turns it off
    repetition_penalty  above 1 makes tokens of the prompt and of the output less likely; 1 turns it off
    seed                two runs with one seed draw the same tokens, whatever else is in the batch; None is random
    max_new_tokens      stop with "length" after this many tokens; None leaves the choice to the caller
    stop                texts that end the generation; the text returned ends before them
    stop_token_ids      tokens that end the generation, beside the model's own EOS tokens
    ignore_eos          generate past the model's EOS tokens
    logprobs            None: off; n: log-probability of each token and of the n most likely ones
    skip_special_tokens leave special tokens such as BOS out of the text
    n                   answers to one prompt; the i-th draws with seed + i. For artifacts of layout paged
    beam_width          search for the n most likely answers with this many beams, greedily; 0 turns it off. For
                        artifacts of layout paged
    speculative_tokens  at most so many candidates a step where the engine speculates (docs/speculation.md); 0 turns it
                        off, None leaves it to the engine
    length_penalty      a beam's log-probability is divided by its length to this power; below 1 favours short answers

    Order of the steps: repetition penalty, temperature, top_k, top_p, min_p, draw (that of transformers).
    A stop or stop_token_ids given as one value is accepted as a list of one. RequestError names a bad value.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_new_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    n: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    speculative_tokens: int | None = None

    def __post_init__(self) -> None:
        normal = {
            "temperature": _number("temperature", self.temperature, "at least 0", lambda v: v >= 0),
            "top_k": _integer("top_k", self.top_k, 0),
            "top_p": _number("top_p", self.top_p, "above 0 and at most 1", lambda v: 0 < v <= 1),
            "min_p": _number("min_p", self.min_p, "from 0 to 1", lambda v: 0 <= v <= 1),
            "repetition_penalty": _number("repetition_penalty", self.repetition_penalty, "above 0", lambda v: v > 0),
            "seed": None if self.seed is None else _integer("seed", self.seed, 0),
            "max_new_tokens": None if self.max_new_tokens is None else _integer("max_new_tokens", self.max_new_tokens),
            "stop": _stop_texts(self.stop),
            "stop_token_ids": _token_ids(self.stop_token_ids),
            "ignore_eos": _boolean("ignore_eos", self.ignore_eos),
            "logprobs": None if self.logprobs is None else _integer("logprobs", self.logprobs, 0),
            "skip_special_tokens": _boolean("skip_special_tokens", self.skip_special_tokens),
            "n": _integer("n", self.n),
            "beam_width": _integer("beam_width", self.beam_width, 0),
            "length_penalty": _number("length_penalty", self.length_penalty, "of any size", lambda v: True),
        }
        if self.speculative_tokens is not None:
            normal["speculative_tokens"] = _integer("speculative_tokens", self.speculative_tokens, 0)
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        if self.beam_width:
            self._check_beams()

    def _check_beams(self) -> None:
        if self.n > self.beam_width:
            raise _fail("n", f"at most the {self.beam_width} beams", self.n)
        if not self.greedy or self.repetition_penalty != 1 or self.stop or self.logprobs is not None:
            raise RequestError(
                "beam_width: beams are searched without temperature, repetition_penalty, stop texts and logprobs: "
                "leave these out"
            )

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0

    @property
    def plain_greedy(self) -> bool:
        """True when nothing but the most likely token of the logits as they are is asked for."""
        return self.greedy and self.repetition_penalty == 1 and self.logprobs is None and not self.beam_width


def _fail(name: str, expected: str, found: object) -> RequestError:
    return RequestError(f"{name}: expected {expected}, found {found!r}")


def _number(name: str, value: Any, expected: str, accept: Callable[[float], bool]) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not accept(number):
        raise _fail(name, f"a number {expected}", value)
    return number


def _integer(name: str, value: Any, minimum: int = 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < minimum:
        raise _fail(name, f"an integer of at least {minimum}", value)
    return number


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(name, "True or False", value)
    return value


def _stop_texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if texts is None or not all(isinstance(text, str) and text for text in texts):
        raise _fail("stop", "texts that are not empty", value)
    return texts


def _token_ids(value: Any) -> tuple[int, ...]:
    ids = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    return tuple(_integer("stop_token_ids", token, 0) for token in ids)
