"""Conversations over the toy engine: every answer is the model's, and no turn is computed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.conversation import Conversation
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.generation.toy_llm import greedy, toy_llm

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARAMS = SamplingParams(max_new_tokens=5)


def turn(talk: Conversation, text: str, pieces: int | None = None) -> None:
    """One turn, which is ended after so many pieces."""
    stream = talk.ask(text, PARAMS)
    for count, _ in enumerate(stream, 1):
        if count == pieces:
            break
    stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["template", "text"])
@pytest.mark.parametrize("stopped", [None, 1, 3])
def test_a_turn_continues_from_the_previous_one(tmp_path: Path, template: str | None, stopped: int | None) -> None:
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    llm = toy_llm(tmp_path, max_seq_len=90)
    talk = Conversation(llm)
    assert talk.uses_template == (template is not None)
    turn(talk, "ab", stopped)
    *_, last = talk.ask("cd", PARAMS)
    assert last.generation is not None
    prompt = last.generation.prompt_token_ids
    assert last.generation.token_ids == greedy(llm, prompt, 5)
    # The last token that was generated had not been fed yet.
    first = len(llm.tokenizer.encode("<user>ab;<assistant>" if template else "ab", add_special_tokens=template is None))
    assert last.generation.cached_tokens == first + (stopped or 5) - 1
    assert prompt[:first] + greedy(llm, prompt[:first], stopped or 5) == prompt[: first + (stopped or 5)]


def test_a_reset_forgets_all_turns(tmp_path: Path) -> None:
    llm = toy_llm(tmp_path)
    talk = Conversation(llm)
    turn(talk, "ab")
    talk.reset()
    *_, last = talk.ask("ab", PARAMS)
    assert last.generation is not None and last.generation.prompt_token_ids == tuple(llm.tokenizer.encode("ab"))


def test_a_turn_that_does_not_fit_is_not_remembered(tmp_path: Path) -> None:
    llm = toy_llm(tmp_path, max_seq_len=40)
    talk = Conversation(llm)
    turn(talk, "ab")
    with pytest.raises(RequestError, match="at most 40 tokens"):
        turn(talk, "x" * 60)
    *_, last = talk.ask("cd", PARAMS)
    assert last.generation is not None and last.generation.cached_tokens == 3 + 5 - 1


def test_a_system_message_needs_a_template(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="system: expected a checkpoint with a chat template, found none"):
        Conversation(toy_llm(tmp_path), "Be brief.")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    llm = toy_llm(tmp_path)
    *_, last = Conversation(llm, "Be brief.").ask("ab", PARAMS)
    assert last.generation is not None
    assert llm.tokenizer.decode(last.generation.prompt_token_ids) == "<system>Be brief.;<user>ab;<assistant>"


def test_answers_are_kept_unless_the_prefix_cache_is_off(tmp_path: Path) -> None:
    kept = toy_llm(tmp_path)
    for llm, cached in ((kept, 6), (LLM(tmp_path, kept.engine, serving=ServingSettings(prefix_cache="off")), 0)):
        answer = llm.generate([1, 2, 3], max_new_tokens=4)
        assert llm.generate([1, 2, 3, *answer.token_ids, 5], max_new_tokens=2).cached_tokens == cached
