"""/v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.sampling import SamplingParams, TokenLogprobs
from hybridge.serve.call import Call, new_id
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import DONE, event
from hybridge.serve.logprobs import LogprobTexts
from hybridge.serve.messages import template_messages
from hybridge.serve.prompts import chat_tokens
from hybridge.serve.sampling import sampling_params
from hybridge.serve.schemas.chat import ChatCompletion, ChatRequest
from hybridge.serve.usage import counts, usage

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    async with await Call.open(request, body.model, body.timeout) as call:
        params = _params(body, call)
        ids = await call.prepare(lambda: _prompt(body, call))
        namespace = call.client.namespace(body.prompt_cache_key, body.cache_salt)
        await call.start([ids], [params], body.priority, namespace)
        answer = _Answer(body, call, params, len(ids))
        if body.stream:
            return await call.stream(answer.events)
        return JSONResponse(answer.whole(await call.results()))


def _params(body: ChatRequest, call: Call) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: expected logprobs with it, found none: set logprobs", param="top_logprobs")
    limits = (body.max_completion_tokens, body.max_tokens, call.service.settings.max_new_tokens)
    most = min((each for each in limits if each is not None), default=call.model.llm.max_seq_len)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, call.model.llm.recommended_sampling, max_new_tokens=max(most, 1), logprobs=logprobs)


def _prompt(body: ChatRequest, call: Call) -> list[int]:
    settings = call.service.settings
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return chat_tokens(
        call.model.llm,
        template_messages(body.messages),
        variables,
        settings.control_tokens,
        body.add_generation_prompt,
        most=settings.max_prompt_tokens,
    )


class _Answer:
    """The response to one request, whole or in events."""

    def __init__(self, body: ChatRequest, call: Call, params: SamplingParams, prompt_tokens: int) -> None:
        self._params, self._prompt_tokens = params, prompt_tokens
        options = body.stream_options
        self._shows_usage = options is not None and options.include_usage
        self._shows_counts = options is not None and options.continuous_usage_stats
        self._texts = LogprobTexts(call.model.llm.tokenizer)
        self._id, self._created, self._model = new_id("chatcmpl"), int(time.time()), body.model

    def whole(self, answers: Sequence[Sequence[Generation]]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.logprobs),
                "finish_reason": answer.finish_reason,
            }
            for index, answer in enumerate(answers[0])
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage(answers)}

    async def events(self, pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
        head = self._head("chat.completion.chunk")
        begun: set[int] = set()
        ended: list[Generation] = []
        new_tokens = 0
        async for piece in pieces:
            if piece.choice not in begun:
                begun.add(piece.choice)
                yield event({**head, "choices": [_choice(piece.choice, {"role": "assistant", "content": ""})]})
            new_tokens += len(piece.token_ids)
            choice = _choice(piece.choice, {"content": piece.text} if piece.text else {}, piece.finish_reason)
            choice["logprobs"] = self._logprobs(piece.logprobs)
            chunk = {**head, "choices": [choice]}
            if self._shows_counts:
                chunk["usage"] = counts(self._prompt_tokens, 0, new_tokens)
            elif self._shows_usage:
                chunk["usage"] = None
            if piece.generation is not None:
                ended.append(piece.generation)
            yield event(chunk)
        if self._shows_usage:
            yield event({**head, "choices": [], "usage": usage([ended])})
        yield DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _logprobs(self, found: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if found is None or self._params.logprobs is None:
            return None
        return {"content": self._texts.chat(found, self._params.logprobs), "refusal": None}


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
