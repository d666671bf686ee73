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
    def functions(self) -> list[Mapping[str, Any]]:
        """The functions of the tools that the model may call."""
        return [] if self.tool_choice == NONE else [tool["function"] for tool in self.tools]

    @property
    def shown_tools(self) -> Sequence[Mapping[str, Any]]:
        """These tools as the prompt shows them to the model."""
        shown = [{key: value for key, value in each.items() if key != "strict"} for each in self.functions]
        return [{"type": "function", "function": function} for function in shown]

    @property
    def forced(self) -> list[Mapping[str, Any]]:
        """The functions one of which must be called; empty if the model decides."""
        if self.tool_choice == AUTO:
            return []
        return [each for each in self.functions if self.tool_choice in (REQUIRED, each["name"])]
