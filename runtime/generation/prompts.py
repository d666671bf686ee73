"""From what a caller passes as prompts to a list of texts and token ids."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridge.artifact.errors import PromptLengthError, RequestError


class TokenArray(Protocol):
    """An array of token ids: of NumPy, or a tensor of torch or another library."""

    @property
    def ndim(self) -> int:
        """Number of axes: 1 for one prompt, 2 for several."""

    def tolist(self) -> Any:
        """The token ids as nested lists."""

    def __len__(self) -> int:
        """Size of the first axis."""


Prompt = str | Sequence[int] | np.ndarray | TokenArray | Mapping[str, Any]
_TEXT, _IDS = "prompt", "prompt_token_ids"


def prompts_of(prompt: object, token_ids: object = None) -> tuple[bool, list[Any]]:
    """Whether there is one prompt alone, and the list of prompts, each a text or a sequence of token ids.

    ``prompt`` is a text, token ids (a list or a 1-D array or tensor), an object {"prompt": text} or
    {"prompt_token_ids": ids}, a list of these, or a 2-D array or tensor. ``token_ids`` may take its place.
    RequestError for anything else.
    """
    given = _given(prompt, token_ids)
    if is_one_prompt(given):
        return True, [_unwrapped(given)]
    several: Any = given
    return False, [_unwrapped(item) for item in (several.tolist() if _is_array(several) else several)]


def prompt_of(prompt: object, token_ids: object = None) -> Any:
    """The one prompt of a call that takes no list of them; RequestError as of ``prompts_of``, and for a list."""
    given = _given(prompt, token_ids)
    if isinstance(given, (list, tuple)) and not given:
        return given
    if not is_one_prompt(given):
        raise RequestError("prompt: expected one prompt, found several: make a call for each")
    return _unwrapped(given)


def snapshot(prompt: Any, most: int) -> Any:
    """A prompt that stays as it is when the caller changes its own list; RequestError for more than ``most`` ids.

    Reads no id: an event loop can wait for it. Arrays are not copied.
    """
    if isinstance(prompt, str):
        return prompt
    if _has_ids(prompt):
        check_length(len(prompt), most, "prompt")
    return tuple(prompt) if isinstance(prompt, list) else prompt


def is_one_prompt(prompt: object) -> bool:
    """True for a text or a sequence of token ids, False for a sequence of prompts; RequestError for anything else.

    The first item of a list decides: AsyncLLM asks in the event loop, and a list may have millions.
    """
    if isinstance(prompt, (str, Mapping)):
        return True
    if _is_array(prompt):
        axes: int = getattr(prompt, "ndim", 0)
        if axes not in (1, 2):
            raise RequestError(f"prompt: expected an array of 1 axis, or of 2 for several prompts, found {axes}")
        return axes == 1
    if not isinstance(prompt, (list, tuple)):
        raise RequestError(f"prompt: expected text, token ids or a list of them, found {type(prompt).__name__}")
    return bool(prompt) and not _is_prompt(prompt[0])


def check_length(found: int, most: int, name: str) -> None:
    """RequestError, which calls the prompt ``name``, for more than ``most`` tokens."""
    if found > most:
        raise PromptLengthError(
            f"{name}: expected at most {most} tokens (max_seq_len), found {found}: shorten it, or export with a larger "
            "`max_seq_len`"
        )


def checked_ids(prompt: Any, name: str, vocab_size: int, most: int) -> tuple[int, ...]:
    """Token ids from 0 to vocab_size - 1, at least one and at most ``most``; RequestError, which calls them ``name``,
    for anything else."""
    if not _has_ids(prompt):
        raise RequestError(f"{name}: expected text or token ids, found {type(prompt).__name__}")
    if not len(prompt):
        raise RequestError(f"{name}: expected at least one token id, found none: pass the BOS token, or leave it out")
    check_length(len(prompt), most, name)
    values: Any = prompt.tolist() if _is_array(prompt) else prompt
    if set(map(type, values)) == {int} and 0 <= min(values) <= max(values) < vocab_size:
        return tuple(values)
    ids = []
    for value in values:
        try:
            token = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            token = -1
        if not 0 <= token < vocab_size:
            raise RequestError(f"{name}: expected token ids from 0 to {vocab_size - 1}, found {value!r}")
        ids.append(token)
    return tuple(ids)


def _given(prompt: object, token_ids: object) -> object:
    """The prompt, or the token ids in its place; RequestError for both."""
    if prompt is not None and token_ids is not None:
        raise RequestError("prompt_token_ids: expected it alone, found a prompt too: leave one out")
    return prompt if token_ids is None else token_ids


def _is_array(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "tolist") and hasattr(value, "ndim")


def _has_ids(prompt: object) -> bool:
    """Whether it is a list or an array that can hold the ids of one prompt."""
    return isinstance(prompt, (list, tuple)) or (_is_array(prompt) and getattr(prompt, "ndim", 0) == 1)


def _is_prompt(item: object) -> bool:
    """Whether an item of a list is a prompt by itself; else a token id, which may be an array of no axis."""
    return isinstance(item, (str, list, tuple, Mapping)) or (_is_array(item) and getattr(item, "ndim", 0) > 0)


def _unwrapped(prompt: object) -> object:
    """The prompt in an object of vLLM's form."""
    if not isinstance(prompt, Mapping):
        return prompt
    known = [name for name in (_TEXT, _IDS) if name in prompt]
    if len(known) != 1 or len(prompt) != 1:
        raise RequestError(f"prompt: expected an object with {_TEXT} or {_IDS} alone, found {sorted(map(str, prompt))}")
    return prompt[known[0]]
