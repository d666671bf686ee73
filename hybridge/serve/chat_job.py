"""Renders, checks and submits a chat: common to all chat endpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hybridge.runtime.chat_output import chat_format
from hybridge.runtime.chat_output.tagged_answer import THINK_END
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.call import Call
from hybridge.serve.chat import Chat
from hybridge.serve.chat_parts import AnswerFormat, PartsReader
from hybridge.serve.constraints import allowed_tokens
from hybridge.serve.errors import ApiError
from hybridge.serve.prompts import ChatPrompt, chat_prompt


@dataclass(frozen=True)
class ChatJob:
    """A chat that has been started. ``answer`` reads the parts of its answers."""

    call: Call
    prompt: ChatPrompt
    params: SamplingParams
    answer: AnswerFormat

    async def results(self) -> list[PartsReader]:
        """The finished answers; errors as of ``Call.results``."""
        readers = [self.answer.reader() for _ in range(self.params.n)]

        async def read() -> None:
            async for piece in self.call.pieces():
                readers[piece.choice].push(piece)

        await self.call.unless_disconnected(read())
        return readers


async def prompt_of(call: Call, chat: Chat) -> ChatPrompt:
    """The rendered chat; RequestError when it is refused."""
    settings = call.service.settings
    return await call.prepare(
        lambda: chat_prompt(
            call.model.llm,
            chat.messages,
            chat.variables,
            settings.control_tokens,
            chat.add_generation_prompt,
            chat.shown_tools or None,
            settings.max_prompt_tokens,
        )
    )


async def start_chat(call: Call, chat: Chat, params: SamplingParams, priority: int | None, namespace: str) -> ChatJob:
    """Render, check and add the chat; ApiError or RequestError when it is refused."""
    llm = call.model.llm
    added = {} if llm.tokenizer is None else llm.tokenizer.added_tokens
    kind = chat_format(llm.chat_template.source(tools=chat.shown_tools or None), added)
    if chat.shown_tools and kind.tools is None and not kind.harmony:
        raise ApiError(
            400, "tools: expected a model whose chat template shows tools, found another: leave them out", param="tools"
        )
    prompt = await prompt_of(call, chat)
    allowed = await allowed_tokens(call.model, chat, kind, prompt.end)
    if allowed is not None:
        params = replace(params, allowed_tokens=allowed)
    if kind.harmony or (kind.tools is not None and chat.shown_tools) or (kind.reasons and added.get(THINK_END)):
        # The tags are special tokens.
        params = replace(params, skip_special_tokens=False)
    await call.start([prompt.ids], [params], priority, namespace, prompt.turns)
    schemas = {function["name"]: function.get("parameters") or {} for function in chat.functions}
    return ChatJob(call, prompt, params, AnswerFormat(kind, schemas or None, prompt.end, chat.most_calls))
