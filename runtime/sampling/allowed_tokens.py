"""The tokens that an answer may have next, as a bit mask that changes from token to token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from hybridge.artifact.errors import RequestError, described

_NAME = "allowed_tokens"


class AllowedTokens(Protocol):
    """Follows one answer, for example through a grammar. All calls come from one thread, in the order of the tokens.

    With a method ``fork() -> AllowedTokens``, a copy that follows the same answer by itself, tokens after draft tokens
    can be sampled on a GPU. A method ``prepare()`` is called at the beginning, and when all answers of a step have
    their tokens: it may begin to compute the next masks in another thread. What it raises is ignored; ``mask`` has to
    raise it. With a method ``coming() -> np.ndarray | None``, the uint32 array that ``mask`` will return once it is
    computed, a GPU's next step is made ready before that.
    """

    def mask(self) -> np.ndarray:
        """uint32 or int32 [ceil(vocab / 32)]: bit t % 32 of word t // 32 says whether token t may come next.

        Called before each token, perhaps twice. ``vocab`` is that of the logits; further bits are ignored. The array
        must not change afterwards.
        """

    def accept(self, token: int) -> None:
        """``token`` was sampled, which the last mask allowed. The next mask may be computed from here on."""


def checked_mask(source: AllowedTokens, vocab: int) -> np.ndarray:
    """The mask of ``source`` as uint32 [ceil(vocab / 32)]; RequestError where it fails or has another form."""
    try:
        found = np.asarray(source.mask())
    except Exception as error:
        raise RequestError(f"{_NAME}: expected a mask, found {described(error)}") from error
    words = -(-vocab // 32)
    if found.shape == (words,) and found.dtype == np.uint32 and found.flags.c_contiguous:
        return found
    if found.shape != (words,) or found.dtype not in (np.uint32, np.int32):
        raise RequestError(f"{_NAME}: expected a mask of uint32[{words}], found {found.dtype}{list(found.shape)}")
    return np.ascontiguousarray(found).view(np.uint32)


def accept_token(source: AllowedTokens, token: int) -> None:
    """Tell ``source`` the token that was sampled; RequestError where that fails."""
    try:
        source.accept(token)
    except Exception as error:
        raise RequestError(f"{_NAME}: expected token {token} to be accepted, found {described(error)}") from error


def forked(source: AllowedTokens) -> AllowedTokens | None:
    """A copy of ``source``; None where it has no ``fork``, or that fails."""
    fork = method_of(source, "fork")
    if fork is None:
        return None
    try:
        found: AllowedTokens = fork()
    except Exception:
        return None  # tokens are then sampled one after another, without a copy
    return found


def prepare_mask(source: AllowedTokens) -> None:
    """Let ``source`` begin to compute its next mask, where it can."""
    prepare = method_of(source, "prepare")
    if prepare is not None:
        with suppress(Exception):
            prepare()


def method_of(source: object, name: str) -> Callable[..., Any] | None:
    """The method ``name`` of ``source``; None where it has none, or looking it up fails."""
    try:
        found = getattr(source, name, None)
    except Exception:
        return None
    return found if callable(found) else None


def allowed_tokens_of(make: Callable[[], AllowedTokens]) -> AllowedTokens:
    """A new one from the ``allowed_tokens`` of a request; RequestError where that makes none."""
    try:
        found = make()
    except Exception as error:
        raise RequestError(f"{_NAME}: expected a callable without arguments, found {described(error)}") from error
    for method in ("mask", "accept"):
        if method_of(found, method) is None:
            raise RequestError(f"{_NAME}: expected an object with `mask` and `accept`, found {type(found).__name__}")
    return found
