"""A chat as all endpoints describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NONE, AUTO, REQUIRED = "none", "auto", "required"


@dataclass(frozen=True)
class Chat:
    """messages: as the template reads them. tools: objects {"type": "function", "function": ...}.

    tool_choice: NONE, AUTO, REQUIRED, or the name of a tool. most_calls: in one answer, None is no limit. grammar: for
    the answer's content. thinking_budget: maximum tokens of reasoning. variables: for the template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = AUTO
    most_calls: int | None = None
    grammar: str | None = None
    thinking_budget: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True

    @property
    def shown_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the prompt shows to the model."""
        return () if self.tool_choice == NONE else self.tools

    @property
    def functions(self) -> list[Mapping[str, Any]]:
        """The functions of these tools."""
        return [tool["function"] for tool in self.shown_tools]

    @property
    def forced(self) -> list[Mapping[str, Any]]:
        """The functions one of which must be called; empty if the model decides."""
        if self.tool_choice == AUTO:
            return []
        return [each for each in self.functions if self.tool_choice in (REQUIRED, each["name"])]
