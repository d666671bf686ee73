"""/v1/messages and /v1/messages/count_tokens, in Anthropic's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.anthropic_messages import chat_of
from hybridge.serve.blocks import CALL, DELTA, REASONING, START, Block, Blocks, BlockStep
from hybridge.serve.call import Call, new_id
from hybridge.serve.chat_job import ChatJob, prompt_of, start_chat
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import event
from hybridge.serve.messages import arguments_object
from hybridge.serve.schemas.base import EVENTS
from hybridge.serve.schemas.messages import CountRequest, Message, MessagesRequest, TokenCount

router = APIRouter()


@router.post("/v1/messages", response_model=Message, responses=EVENTS)
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    async with await Call.begin(request, body.model) as call:
        job = await start_chat(
            call, chat_of(body, call.images), _params(body, call), None, call.client.namespace(None, None)
        )
        answer = _Answer(body, job)
        if body.stream:
            return await call.stream(answer)
        await call.unless_disconnected(answer.read())
        return JSONResponse(answer.message())


@router.post("/v1/messages/count_tokens", response_model=TokenCount)
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """The tokens of a conversation."""
    async with await Call.begin(request, body.model) as call:
        prompt = await prompt_of(call, chat_of(body, call.images))
        return JSONResponse({"input_tokens": len(prompt.ids)})


def _params(body: MessagesRequest, call: Call) -> SamplingParams:
    recommended, most = call.model.llm.recommended_sampling, call.service.settings.max_new_tokens
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
    return replace(
        SamplingParams() if recommended.greedy else recommended,
        max_new_tokens=body.max_tokens if most is None else min(most, body.max_tokens),
        stop=[text for text in body.stop_sequences or () if text],
        **{name: value for name, value in given.items() if value is not None},
    )


class _Answer:
    """The response to one request, whole or in events."""

    def __init__(self, body: MessagesRequest, job: ChatJob) -> None:
        self._job = job
        self._shows_reasoning = body.thinking is None or body.thinking.display != "omitted"
        self._head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": body.model}
        self._reader, self._blocks = job.answer.reader(), Blocks()

    async def read(self) -> None:
        """The whole answer."""
        async for batch in self._job.call.batches():
            self._steps(batch)

    def message(self) -> dict[str, Any]:
        """After the last piece."""
        content = [_content(self._shown(block)) for block in self._blocks.all]
        return {**self._head, "content": content, **self._stop(), "usage": self._usage()}

    def begin(self) -> bytes:
        stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        start = {**self._head, "content": [], **stop, "usage": self._usage()}
        return event({"type": "message_start", "message": start}, "message_start")

    def write(self, batch: Sequence[Piece]) -> bytes:
        steps = self._steps(batch)
        if not self._shows_reasoning:
            steps = [step for step in steps if step.kind != DELTA or step.block.kind != REASONING]
        return b"".join(map(_block_event, steps))

    def end(self) -> bytes:
        last = {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        return event(last, "message_delta") + event({"type": "message_stop"}, "message_stop")

    def fail(self, error: ApiError) -> bytes:
        return event(error.anthropic(), "error")

    def _steps(self, batch: Sequence[Piece]) -> Sequence[BlockStep]:
        steps = self._blocks.push(self._reader.read(batch))
        return steps if self._reader.generation is None else [*steps, *self._blocks.finish()]

    def _shown(self, block: Block) -> Block:
        return block if self._shows_reasoning or block.kind != REASONING else replace(block, text="")

    def _stop(self) -> dict[str, Any]:
        found = self._reader.generation
        assert found is not None
        if self._reader.finish_reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(found.stopped_by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": found.stopped_by}
        return {"stop_reason": "max_tokens" if found.finish_reason == "length" else "end_turn", "stop_sequence": None}

    def _usage(self) -> dict[str, int]:
        found: Generation | None = self._reader.generation
        cached = 0 if found is None else found.cached_tokens
        return {
            "input_tokens": len(self._job.prompt.ids) - cached,
            "output_tokens": 0 if found is None else len(found.token_ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }


def _content(block: Block) -> dict[str, Any]:
    if block.kind == CALL:
        found = arguments_object(block.text)
        return {
            "type": "tool_use",
            "id": f"toolu_{block.key}",
            "name": block.name,
            "input": found if isinstance(found, dict) else {},
        }
    if block.kind == REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _block_event(step: BlockStep) -> bytes:
    name, data = _block_data(step)
    return event({"type": name, "index": step.block.index, **data}, name)


def _block_data(step: BlockStep) -> tuple[str, dict[str, Any]]:
    block = step.block
    if step.kind == START:
        return "content_block_start", {
            "content_block": _content(Block(block.index, block.kind, block.name, "", block.key))
        }
    if step.kind != DELTA:
        return "content_block_stop", {}
    if block.kind == CALL:
        delta = {"type": "input_json_delta", "partial_json": step.text}
    elif block.kind == REASONING:
        delta = {"type": "thinking_delta", "thinking": step.text}
    else:
        delta = {"type": "text_delta", "text": step.text}
    return "content_block_delta", {"delta": delta}
