"""A limit on the values in the JSON of a request: to parse and check them stops all other requests."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.limits import REQUEST_OBJECTS, REQUEST_VALUES
from hybridge.serve.errors import ApiError


def check_values(body: bytes) -> None:
    """ApiError 413 when ``body``, which need not be JSON, has too many objects or values. A member of an object counts
    as one value."""
    # First with the characters of strings, then, if these are too many, without them.
    if _exceeded(body) and (limit := _exceeded(_outside_strings(body))):
        raise ApiError(413, f"body: expected at most {limit} in its JSON, found more: shorten the request")


def _exceeded(text: bytes) -> str | None:
    """The limit that ``text`` exceeds."""
    if len(text) <= REQUEST_OBJECTS:
        return None
    objects = text.count(b"{")
    if objects > REQUEST_OBJECTS:
        return f"{REQUEST_OBJECTS} objects"
    values = objects + text.count(b"[") + text.count(b",")
    return f"{REQUEST_VALUES} values" if values > REQUEST_VALUES else None


def _outside_strings(body: bytes) -> bytes:
    """The characters of ``body`` that are not within quotation marks."""
    text = np.frombuffer(body.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside = np.logical_xor.accumulate(text == ord('"'))
    return text[~inside].tobytes()
