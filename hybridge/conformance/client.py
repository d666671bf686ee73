"""A client of /v1/completions that sends one request at a time in each thread."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from hybridge.artifact.errors import HybridgeError, SettingError

_ERROR_BYTES = 4096
_ANSWER_BYTES = 64 * 2**20


class ServerError(HybridgeError):
    """The server cannot be reached, refused a request, or returned something unexpected. status: HTTP's, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One answer. tokens: their texts, empty where the server reports none. gaps: by token, the difference of the
    log-probabilities of the two most likely tokens, where the server reports them. cached_tokens: of the prompt.
    """

    text: str
    tokens: tuple[str, ...] = ()
    gaps: tuple[float, ...] = ()
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Features:
    """Optional request fields that the server supports."""

    logprobs: bool
    cache_salt: bool


class CompletionsClient:
    """Requests at temperature 0. Any thread may call it."""

    def __init__(self, url: str, model: str | None, key: str | None, max_tokens: int, timeout: float) -> None:
        """``url``: with or without /v1. SettingError when it is not an HTTP address."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise SettingError(f"url: expected an address such as http://127.0.0.1:8000, found {url!r}")
        self._base = url.rstrip("/").removesuffix("/v1")
        self._key, self._max_tokens, self._timeout = key, max_tokens, timeout
        self.model = model if model is not None else self._first_model()
        self.features = self._detect()

    def complete(self, prompt: str, n: int = 1, salt: str = "") -> list[Answer]:
        """The ``n`` answers to a prompt. salt: prompts of different salts share no cached prefix, where supported."""
        found = self._post(self._body(prompt, self.features, n, salt))
        try:
            usage = found.get("usage") or {}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            return [_answer(choice, cached) for choice in sorted(found["choices"], key=lambda each: each["index"])]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ServerError(f"{self._base}: expected a completion, found another answer ({error!r})") from error

    def abandon(self, prompt: str) -> None:
        """Begin a stream and close the connection after its first bytes."""
        request = self._request({**self._body(prompt, Features(False, False), 1, ""), "stream": True})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                response.read(16)
        except (OSError, HTTPException) as error:
            raise self._failure(error) from error

    def _first_model(self) -> str:
        found = self._call(urllib.request.Request(f"{self._base}/v1/models", headers=self._headers()))
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError(
                f"{self._base}/v1/models: expected a list of models, found {error!r}: pass model"
            ) from error

    def _detect(self) -> Features:
        """Try the optional fields, since servers refuse or ignore those that they do not know."""
        accepted = {}
        for name, features in (("logprobs", Features(True, False)), ("cache_salt", Features(False, True))):
            try:
                self._post({**self._body("Hello", features, 1, "salt"), "max_tokens": 1})
                accepted[name] = True
            except ServerError as error:
                if error.status not in (400, 422):
                    raise
                accepted[name] = False
        return Features(**accepted)

    def _body(self, prompt: str, features: Features, n: int, salt: str) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": self._max_tokens, "temperature": 0}
        if n > 1:
            body["n"] = n
        if features.logprobs:
            body["logprobs"] = 2
        if features.cache_salt and salt:
            body["cache_salt"] = salt
        return body

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **({"Authorization": f"Bearer {self._key}"} if self._key else {})}

    def _request(self, body: Mapping[str, Any]) -> urllib.request.Request:
        return urllib.request.Request(f"{self._base}/v1/completions", json.dumps(body).encode(), self._headers())

    def _post(self, body: Mapping[str, Any]) -> Any:
        return self._call(self._request(body))

    def _call(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.loads(response.read(_ANSWER_BYTES))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> ServerError:
        if isinstance(error, urllib.error.HTTPError):
            text = error.read(_ERROR_BYTES).decode("utf-8", "replace")
            return ServerError(f"{error.url}: expected an answer, found status {error.code}: {text[:300]}", error.code)
        return ServerError(f"{self._base}: expected an answer, found {error}: is the server running?")


def _answer(choice: Mapping[str, Any], cached: int | None) -> Answer:
    logprobs = choice.get("logprobs") or {}
    tokens, tops = logprobs.get("tokens") or (), logprobs.get("top_logprobs") or ()
    return Answer(str(choice["text"]), tuple(map(str, tokens)), tuple(map(_gap, tops)), cached)


def _gap(top: Mapping[str, float] | None) -> float:
    """The log-probability gap of the two most likely tokens; infinite if fewer are reported."""
    values = sorted((top or {}).values(), reverse=True)
    return values[0] - values[1] if len(values) > 1 else float("inf")
