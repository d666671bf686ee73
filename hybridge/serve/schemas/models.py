"""/v1/models, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import JsonObject, ListOf, RequestBody, ResponseBody
from hybridge.serve.schemas.chat import ChatMessage
from hybridge.serve.schemas.completions import TokenId
from hybridge.serve.schemas.tools import Tool


class Model(ResponseBody):
    """max_model_len: most tokens of a sequence; None of a model that is not loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(ResponseBody):
    object: Literal["list"]
    data: list[Model]


class TokenizeRequest(RequestBody):
    """A text, or the messages of a chat, which its template renders."""

    model: str
    prompt: str | None = None
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1, max_length=limits.CONVERSATION_MESSAGES)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: JsonObject | None = None
    tools: ListOf[Tool] | None = None

    @property
    def template_tools(self) -> list[dict[str, Any]] | None:
        """As the template reads them."""
        return None if self.tools is None else [tool.model_dump(exclude_none=True) for tool in self.tools]


class Tokenized(ResponseBody):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(RequestBody):
    model: str
    tokens: Annotated[ListOf[TokenId], Field(max_length=1 << 20)]


class Detokenized(ResponseBody):
    prompt: str
