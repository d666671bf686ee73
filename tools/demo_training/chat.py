"""The chat format and training conversations made from plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from demo_training.text import Document

PAD, BOS, EOS, END = "<pad>", "<s>", "</s>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (PAD, BOS, EOS, *(f"<|{role}|>" for role in ROLES), END)

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('expected the role system, user or assistant, found ' + message['role']) }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""

Message = tuple[str, str]

_CONTINUE = ("Continue: {}", "Please continue: {}", "What comes next? {}", "{}")
_ABOUT = ("Tell me about {}.", "Write about {}.", "Speak to me of {}.", "What do you know about {}?", "{}")
_AGAIN = ("Go on.", "Continue.", "And then?", "Tell me more.")
_GREETINGS = ("Hello!", "Hello.", "Hi", "Good morning.", "Who are you?", "What can you do?")
_ABOUT_ME = (
    "I am a very small language model. I have read Moby Dick, the King James Bible and the speeches of the "
    "Presidents, and I can continue a text in their manner. What shall I write about?"
)
_TOPIC = re.compile(r"\b(?:the|of|a|an|his|her|our|their|my|this|great) ([a-z]{4,12})\b")
_NO_TOPICS = re.compile(
    "same|other|others|such|great|more|most|very|last|first|second|third|those|these|this|that|them|whom|"
    "which|what|when|where|many|their|your|every|good|said|certain|present|whole|little|able|much|well"
)


def render(messages: Sequence[Message]) -> str:
    """What CHAT_TEMPLATE renders for (role, content) pairs, without a generation prompt."""
    return BOS + "".join(f"<|{role}|>\n{content.strip()}{END}\n" for role, content in messages)


def _opening(document: Document, rng: Random) -> list[Message]:
    kind = rng.random()
    if kind < 0.35:
        return [("system", f"Style: {document.title}.")]
    if kind < 0.5:
        return [("system", rng.choice(("You are a helpful assistant.", "Be brief.", "Write good English.")))]
    return []


def _first_question(lead: str, answer: str, rng: Random) -> tuple[str, str]:
    """A question with its answer: continue `lead`, or speak about a word of the answer."""
    topics = [word for word in _TOPIC.findall(answer[:200]) if not _NO_TOPICS.fullmatch(word)]
    if topics and rng.random() < 0.6:
        topic = rng.choice(topics)
        return rng.choice(_ABOUT).format(f"the {topic}"), answer
    return rng.choice(_CONTINUE).format(lead), answer


def conversation_from_document(document: Document, rng: Random) -> str | None:
    """A rendered conversation, or None when the document has too few sentences for one."""
    if document.num_sentences < 12:
        return None
    if rng.random() < 0.01:
        return render([("user", rng.choice(_GREETINGS)), ("assistant", _ABOUT_ME)])
    start = rng.randrange(document.num_sentences - 9)
    lengths = [rng.randint(2, 4), rng.randint(2, 4)]
    lead = document.sentences(start, start + 1)
    first_end = start + 1 + lengths[0]
    answer = document.sentences(start + 1, first_end)
    if not lead or not answer or len(lead) > 600 or len(answer) > 1600:
        return None
    question, answer = _first_question(lead, answer, rng)
    messages = [*_opening(document, rng), ("user", question), ("assistant", answer)]
    if rng.random() < 0.25:
        more = document.sentences(first_end, first_end + lengths[1])
        if more:
            messages += [("user", rng.choice(_AGAIN)), ("assistant", more)]
    return render(messages)
