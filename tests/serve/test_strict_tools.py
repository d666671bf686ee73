"""Tools with ``strict``: calls that the model makes on its own follow the tool's schema, and other text is free."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.serve.constraints import _AroundReasoning
from hybridge.serve.settings import ModelSettings
from tests.serve.conftest import TEMPLATE
from tests.serve.running import Running, running
from tests.serve.test_structured import CHAT, SCHEMA, USER, is_place

# A token of the demo model stands for each tag.
TAGS = {"<|system|>": "<tool_call>", "<|user|>": "<think>", "<|assistant|>": "</think>"}
CALL, THINK = 3, 4
DRAFTS = {"none": {}, "ngram": {"draft": "ngram", "draft_tokens": 3}}


def tools(strict: bool | None) -> list[dict[str, Any]]:
    function = {"name": "look", "parameters": SCHEMA} | ({} if strict is None else {"strict": strict})
    return [{"type": "function", "function": function}]


@pytest.fixture(scope="module", params=list(DRAFTS))
def tagged(
    request: pytest.FixtureRequest, artifact: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server of the demo model with tokens for the tags."""
    folder = shutil.copytree(artifact, tmp_path_factory.mktemp("tagged") / "demo")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8")
        for token, tag in TAGS.items():
            text = text.replace(json.dumps(token), json.dumps(tag))
        (folder / name).write_text(text, encoding="utf-8")
    with running([ModelSettings("demo", folder, preload=True, threads=1, **DRAFTS[request.param])]) as found:
        yield found


FIELDS: dict[str, Any] = {"messages": USER, "temperature": 1.0, "seed": 3, "max_tokens": 120}


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [False, True])
def test_calls_follow_the_schema(tagged: Running, thinks: bool) -> None:
    """The model is made to begin a call wherever it may."""
    fields = FIELDS | {"logit_bias": {str(CALL): 100, str(THINK): -100}, "chat_template_kwargs": {"thinks": thinks}}
    fields["stop"] = "</tool_call>"
    fields |= {"thinking_budget": 4} if thinks else {}
    message = tagged.post(CHAT, **fields, tools=tools(True), parallel_tool_calls=False)["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "look" and is_place(call["function"]["arguments"])
    assert not message["content"] or "<tool_call>" not in message["content"]
    assert message.get("reasoning_content") == ("<tool_call>" * 4 if thinks else None)
    for strict in (None, False):
        message = tagged.post(CHAT, **fields, tools=tools(strict))["choices"][0]["message"]
        assert message["content"].startswith("<tool_call><tool_call>") and "tool_calls" not in message


@pytest.mark.slow
@pytest.mark.parametrize("bias", [{}, {str(THINK): 100}])
def test_text_without_calls_is_free(tagged: Running, bias: dict[str, float]) -> None:
    """Reasoning that the answer itself begins is free too."""
    fields = FIELDS | {"logit_bias": {str(CALL): -100, **bias}, "max_tokens": 40}
    answers = [tagged.post(CHAT, **fields, tools=tools(strict))["choices"][0] for strict in (True, False)]
    for name in ("content", "reasoning_content"):
        assert answers[0]["message"].get(name) == answers[1]["message"].get(name)
    assert answers[0]["message"]["reasoning_content" if bias else "content"]


@pytest.mark.slow
def test_a_wrong_schema_is_refused(tagged: Running) -> None:
    (tool,) = tools(True)
    tool["function"]["parameters"] = {"properties": {"a": {"type": "nonsense"}}}
    assert tagged.refusal(CHAT, 400, **FIELDS, tools=[tool])["param"] == "tools"
    tool["function"]["strict"] = False
    assert tagged.post(CHAT, **(FIELDS | {"max_tokens": 1}), tools=[tool])["choices"]


class Text:
    """``AllowedTokens`` of any text (tokens 5 and 6, the end 7), where a call from 6 to 6 has only 5 and 6."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def mask(self) -> np.ndarray:
        return np.array([0x60 if self.accepted.count(6) % 2 else 0xE0], np.int32)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def test_reasoning_that_begins_again() -> None:
    """Not within a call; its tokens do not reach the grammar of the content."""
    content = Text()
    around = _AroundReasoning(1, 2, False, None, 1, content, stop=7)
    expected = ((5, 0xE2), (1, 0xE2), (9, 0xFFFFFFFF), (2, 0xFFFFFFFF), (6, 0xE2), (5, 0x60), (6, 0x60), (1, 0xE2))
    for token, allowed in expected:
        assert around.mask().view(np.uint32).tolist() == [allowed]
        around.accept(token)
    assert content.accepted == [5, 6, 5, 6]
    assert _AroundReasoning(1, 2, False, None, 1, Text()).mask().tolist() == [0xE0]
