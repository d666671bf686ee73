"""Tools of a chat, and calls of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.serve.schemas.base import JsonObject, RequestBody

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


Strict = Annotated[
    bool | None,
    Field(
        description="Whether calls follow the schema. Those that the request requires, or that replace a format, "
        "always do. Arguments of a tool without strict are any JSON object where another tool is strict."
    ),
]


class FunctionTool(RequestBody):
    """``parameters``: a JSON schema of an object."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: Strict = None


class Tool(RequestBody):
    type: Literal["function"]
    function: FunctionTool


class FunctionName(RequestBody):
    name: Name


class NamedTool(RequestBody):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class FunctionCall(RequestBody):
    name: str
    arguments: str


class ToolCall(RequestBody):
    id: str
    type: Literal["function"]
    function: FunctionCall
