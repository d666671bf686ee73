"""Errors of the API, in the shape of OpenAI's or Anthropic's."""

from __future__ import annotations

import math
import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hybridge.artifact.errors import HybridgeError, PromptLengthError, RequestError

INVALID, AUTHENTICATION, PERMISSION, NOT_FOUND = (
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
)
RATE_LIMIT, SERVER, OVERLOADED, TIMEOUT = "rate_limit_error", "server_error", "overloaded_error", "timeout_error"
# Anthropic's names for the same.
_ANTHROPIC = {SERVER: "api_error"}
ANTHROPIC_PATH = "/v1/messages"
# Our parameters under the names of the API.
_PARAMETERS = {"max_new_tokens": "max_tokens", "namespace": "cache_salt"}


# Characters of what an error shows: names and texts of a request may have megabytes.
_LONGEST, _LONGEST_PARAM = 2000, 200


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class ApiError(HTTPException):
    """A refusal with an HTTP status. ``retry_after``: seconds after which the client may try again."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        message, param = _shortened(message, _LONGEST), None if param is None else _shortened(param, _LONGEST_PARAM)
        super().__init__(status, message)
        self.message, self.kind, self.code, self.param = message, kind, code, param
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    @property
    def response_headers(self) -> dict[str, str]:
        """Retry-After, and a header that tells clients not to repeat a request that timed out."""
        if self.retry_after is not None:
            return {"retry-after": str(self.retry_after)}
        return {"x-should-retry": "false"} if self.kind == TIMEOUT else {}

    def openai(self) -> dict[str, Any]:
        """The body that OpenAI's clients read."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body that Anthropic's clients read."""
        kind = _ANTHROPIC.get(self.kind, self.kind)
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def api_error(error: BaseException) -> ApiError:
    """The refusal for ``error``; details of an unexpected one are not shown."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        named = re.match(r"([a-z_]+): ", str(error))
        param = named and _PARAMETERS.get(named[1], named[1])
        code = "context_length_exceeded" if isinstance(error, PromptLengthError) else None
        return ApiError(400, str(error), INVALID, code, param)
    if isinstance(error, HybridgeError):
        return ApiError(500, str(error), SERVER)
    if isinstance(error, HTTPException):
        return _of_framework(error)
    return ApiError(500, "internal error: the server's log has the details of this request id", SERVER)


def error_response(path: str, error: ApiError) -> JSONResponse:
    """The response to a request for ``path``."""
    body = error.anthropic() if path.startswith(ANTHROPIC_PATH) else error.openai()
    return JSONResponse(body, error.status_code, error.response_headers)


def _of_framework(error: HTTPException) -> ApiError:
    status = error.status_code
    if status == 404:
        return ApiError(404, "expected a path of this API, found another: see /openapi.json", NOT_FOUND)
    if status == 405:
        return ApiError(405, "expected another HTTP method for this path: see /openapi.json")
    return ApiError(status, str(error.detail), INVALID if status < 500 else SERVER)
