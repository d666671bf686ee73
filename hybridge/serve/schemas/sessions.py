"""/v1/sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import JsonObject, ListOf, RequestBody, ResponseBody
from hybridge.serve.schemas.chat import ChatMessage
from hybridge.serve.schemas.completions import TokenIds
from hybridge.serve.schemas.tools import Tool

SessionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]


class SaveRequest(RequestBody):
    """The conversation as ``messages``, or as the text or tokens of ``prompt``; names of the prefix cache as there."""

    model: str
    name: SessionName
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1, max_length=limits.CONVERSATION_MESSAGES)] | None = None
    prompt: str | TokenIds | None = None
    tools: ListOf[Tool] | None = None
    chat_template_kwargs: JsonObject | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None


class LoadRequest(RequestBody):
    model: str


class Session(ResponseBody):
    """``tokens``: of the conversation that do not have to be computed; None in a list."""

    object: Literal["session"]
    name: str
    tokens: int | None
    bytes: int
    created: int


class SessionList(ResponseBody):
    object: Literal["list"]
    data: list[Session]


class Deleted(ResponseBody):
    object: Literal["session.deleted"]
    name: str
    deleted: Literal[True]
