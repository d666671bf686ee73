"""/v1/responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.generation import Piece
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.blocks import Blocks, BlockStep
from hybridge.serve.call import Call, new_id
from hybridge.serve.chat_job import ChatJob, start_chat
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import DONE, event
from hybridge.serve.response_input import chat_of, conversation_of, input_items
from hybridge.serve.response_items import item_events, item_of, message_of, usage_of
from hybridge.serve.schemas.base import EVENTS
from hybridge.serve.schemas.responses import (
    ENCRYPTED_REASONING,
    ResponseNamedTool,
    ResponseObject,
    ResponsesRequest,
    TextFormat,
)
from hybridge.serve.stored_responses import StoredResponse

router = APIRouter()
_LOGPROBS = "message.output_text.logprobs"


@router.post("/v1/responses", response_model=ResponseObject, responses=EVENTS)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a conversation."""
    if body.top_logprobs or _LOGPROBS in (body.include or ()):
        raise ApiError(
            400,
            "expected top_logprobs of 0 and no logprobs in include, found them: use /v1/chat/completions",
            param="top_logprobs" if body.top_logprobs else "include",
        )
    async with await Call.begin(request, body.model) as call:
        namespace = call.client.namespace(body.prompt_cache_key, None)
        earlier = call.earlier_messages(body.previous_response_id)
        messages = [*earlier, *conversation_of(body.input, call.images, earlier)]
        job = await start_chat(call, chat_of(body, messages), _params(body, call), None, namespace)
        answer = _Answer(body, job, messages)
        if body.stream:
            return await call.stream(answer)
        await call.unless_disconnected(answer.read())
        return JSONResponse(answer.finish())


def _params(body: ResponsesRequest, call: Call) -> SamplingParams:
    recommended = call.model.llm.recommended_sampling
    limits = (body.max_output_tokens, call.service.settings.max_new_tokens)
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    return replace(
        SamplingParams() if recommended.greedy else recommended,
        max_new_tokens=min((each for each in limits if each is not None), default=call.model.llm.max_seq_len),
        **given,
    )


class _Answer:
    """The response to one request, whole or in events."""

    def __init__(self, body: ResponsesRequest, job: ChatJob, messages: Sequence[Mapping[str, Any]]) -> None:
        """``messages``: the conversation before the answer."""
        self._body, self._job, self._messages = body, job, messages
        self._stored = body.store is not False and job.call.service.responses.enabled
        self._id, self._created = new_id("resp"), int(time.time())
        self._reader, self._blocks = job.answer.reader(), Blocks()
        self._encrypts = ENCRYPTED_REASONING in (body.include or ())
        self._events = 0

    @property
    def status(self) -> str:
        """After the last piece."""
        found = self._reader.generation
        return "incomplete" if found is not None and found.finish_reason == "length" else "completed"

    async def read(self) -> None:
        """The whole answer."""
        async for batch in self._job.call.batches():
            self._steps(batch)

    def finish(self) -> dict[str, Any]:
        """The response after the last piece. It is stored, if enabled, for later requests to read or continue."""
        call, response = self._job.call, self.response(self.status)
        if self._stored or call.turns is not None:
            messages = [*self._messages, message_of(self._blocks.all)]
            if self._stored:
                stored = StoredResponse(response, input_items(self._body), messages)
                call.service.responses.add(call.client.tenant, stored)
            if call.turns is not None:
                call.turns.ended(self._id, messages)
        return response

    def begin(self) -> bytes:
        names = ("created", "in_progress")
        return b"".join(
            [self._event({"type": f"response.{name}", "response": self.response("in_progress")}) for name in names]
        )

    def write(self, batch: Sequence[Piece]) -> bytes:
        return b"".join(
            [
                self._event(data)
                for step in self._steps(batch)
                for data in item_events(step, self.status, self._encrypts)
            ]
        )

    def end(self) -> bytes:
        response = self.finish()
        return self._event({"type": f"response.{self.status}", "response": response}) + DONE

    def fail(self, error: ApiError) -> bytes:
        shown = {"type": "error", "status": error.status_code, **error.openai()}
        response = self.response("failed") | {"error": {"code": error.code or error.kind, "message": error.message}}
        return self._event(shown) + self._event({"type": "response.failed", "response": response})

    def _event(self, data: dict[str, Any]) -> bytes:
        self._events += 1
        return event({**data, "sequence_number": self._events - 1}, data["type"])

    def response(self, status: str) -> dict[str, Any]:
        """The response object."""
        body, params, found = self._body, self._job.params, self._reader.generation
        ended = status != "in_progress"
        state = "incomplete" if status == "failed" else status
        output = [item_of(block, state, self._encrypts) for block in self._blocks.all] if ended else []
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": body.model,
            "output": output,
            "usage": None if found is None else usage_of(found, self._reader.reasoning_tokens),
            "previous_response_id": body.previous_response_id,
            "store": self._stored,
            "background": False,
            "truncation": "disabled",
            "service_tier": "default",
            **self._given(),
            "temperature": params.temperature,
            "top_p": params.top_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }

    def _given(self) -> dict[str, Any]:
        """Fields of the request that the response repeats."""
        body = self._body
        choice, form = body.tool_choice, None if body.text is None else body.text.format
        form = form or TextFormat(type="text")
        return {
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": None if body.reasoning is None else body.reasoning.model_dump(),
            "text": {"format": form.model_dump(exclude_none=True, by_alias=True)},
            "tool_choice": choice.model_dump() if isinstance(choice, ResponseNamedTool) else choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "metadata": body.metadata or {},
            "user": body.user,
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
        }

    def _steps(self, batch: Sequence[Piece]) -> Sequence[BlockStep]:
        steps = self._blocks.push(self._reader.read(batch))
        return steps if self._reader.generation is None else [*steps, *self._blocks.finish()]
