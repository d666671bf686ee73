"""/v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.chat_output import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from hybridge.runtime.generation import Piece
from hybridge.runtime.sampling import SamplingParams, TokenLogprobs
from hybridge.serve.call import Call, new_id
from hybridge.serve.chat import AUTO, NONE, Chat
from hybridge.serve.chat_job import ChatJob, start_chat
from hybridge.serve.chat_parts import PartsReader, by_choice
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import DONE, EventTemplate, event
from hybridge.serve.logprobs import LogprobTexts
from hybridge.serve.messages import template_messages
from hybridge.serve.sampling import sampling_params
from hybridge.serve.schemas.base import EVENTS
from hybridge.serve.schemas.chat import ChatCompletion, ChatRequest
from hybridge.serve.structured import grammar_of
from hybridge.serve.usage import counts, usage

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion, response_model_exclude_none=True, responses=EVENTS)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    async with await Call.begin(request, body.model, body.timeout) as call:
        namespace = call.client.namespace(body.prompt_cache_key, body.cache_salt)
        job = await start_chat(call, _chat(body, call), _params(body, call), body.priority, namespace)
        answer = _Answer(body, job)
        if body.stream:
            return await call.stream(answer)
        return JSONResponse(answer.whole(await job.results()))


def _params(body: ChatRequest, call: Call) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: expected logprobs with it, found none: set logprobs", param="top_logprobs")
    limits = (body.max_completion_tokens, body.max_tokens, call.service.settings.max_new_tokens)
    most = min((each for each in limits if each is not None), default=call.model.llm.max_seq_len)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, call.model.llm.recommended_sampling, max_new_tokens=most, logprobs=logprobs)


def _chat(body: ChatRequest, call: Call) -> Chat:
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    choice = body.tool_choice or (AUTO if body.tools else NONE)
    return Chat(
        template_messages(body.messages, call.images),
        [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        choice if isinstance(choice, str) else choice.function.name,
        1 if body.parallel_tool_calls is False else None,
        grammar_of(body.response_format, body.structured_outputs),
        body.thinking_budget,
        variables,
        body.add_generation_prompt,
    )


class _Answer:
    """The response to one request, whole or in events."""

    def __init__(self, body: ChatRequest, job: ChatJob) -> None:
        self._job = job
        options = body.stream_options
        self._shows_usage = options is not None and options.include_usage
        self._shows_counts = options is not None and options.continuous_usage_stats
        self._texts = LogprobTexts(job.call.model.llm.tokenizer)
        self._head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": body.model}
        # Of a stream.
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}
        self._readers = [job.answer.reader() for _ in range(job.params.n)]
        self._texts_of: dict[int, EventTemplate] = {}
        self._plain = not self._shows_counts and job.params.logprobs is None
        self._new_tokens = 0

    def whole(self, answers: Sequence[PartsReader]) -> dict[str, Any]:
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": _usage(answers)}

    def begin(self) -> bytes:
        return b""

    def write(self, batch: Sequence[Piece]) -> bytes:
        found: list[bytes] = []
        for index, pieces in by_choice(batch).items():
            reader = self._readers[index]
            if index not in self._texts_of:
                found.append(self._event(_chunk_choice(index, {"role": "assistant", "content": ""})))
                chunk = self._chunk(_chunk_choice(index, {"content": ""}))
                self._texts_of[index] = EventTemplate(chunk, "choices", 0, "delta", "content")
            events = reader.read(pieces)
            if self._shows_counts:
                self._new_tokens += sum(len(piece.token_ids) for piece in pieces)
            if self._plain and reader.generation is None and len(events) == 1 and isinstance(events[0], Content):
                found.append(self._texts_of[index].event(events[0].text))
            else:
                found += [self._event(choice) for choice in self._chunk_choices(index, events, pieces)]
        return b"".join(found)

    def end(self) -> bytes:
        if not self._shows_usage:
            return DONE
        return event({**self._chunk_head, "choices": [], "usage": _usage(self._readers)}) + DONE

    def fail(self, error: ApiError) -> bytes:
        return event(error.openai())

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event(self._chunk(choice))

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._chunk_head, "choices": [choice]}
        if self._shows_counts:
            chunk["usage"] = counts(len(self._job.prompt.ids), 0, self._new_tokens)
        elif self._shows_usage:
            chunk["usage"] = None
        return chunk

    def _chunk_choices(self, index: int, events: Sequence[Event], pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """The chunks for new pieces of one answer; the first has the log-probabilities."""
        reader = self._readers[index]
        choices = [_chunk_choice(index, delta) for delta in _deltas(reader, events)]
        choices = choices or [_chunk_choice(index, {})]
        if pieces[0].logprobs is not None:
            choices[0]["logprobs"] = self._logprobs([each for piece in pieces for each in piece.logprobs or ()])
        if reader.generation is not None:
            choices[-1]["finish_reason"] = reader.finish_reason
        return choices

    def _choice(self, index: int, answer: PartsReader) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
                for each in answer.calls
            ]
        assert answer.generation is not None
        logprobs = self._logprobs(answer.generation.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finish_reason}

    def _logprobs(self, found: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        top = self._job.params.logprobs
        return None if found is None or top is None else {"content": self._texts.chat(found, top), "refusal": None}


def _deltas(reader: PartsReader, events: Sequence[Event]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for each in events:
        if isinstance(each, Content):
            deltas.append({"content": each.text})
        elif isinstance(each, Reasoning):
            deltas.append({"reasoning_content": each.text})
        elif isinstance(each, ToolCallStart):
            function = {"name": each.name, "arguments": ""}
            call = {"index": each.index, "id": reader.calls[each.index].id, "type": "function", "function": function}
            deltas.append({"tool_calls": [call]})
        elif isinstance(each, ToolCallArguments):
            deltas.append({"tool_calls": [{"index": each.index, "function": {"arguments": each.text}}]})
    return deltas


def _usage(answers: Sequence[PartsReader]) -> dict[str, Any]:
    found = usage([[answer.generation for answer in answers if answer.generation is not None]])
    found["completion_tokens_details"] = {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)}
    return found


def _chunk_choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
