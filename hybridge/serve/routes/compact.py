"""/v1/responses/compact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.call import Call, new_id
from hybridge.serve.chat import NONE, Chat
from hybridge.serve.chat_job import start_chat
from hybridge.serve.compaction import compaction_item, with_request
from hybridge.serve.errors import SERVER, ApiError
from hybridge.serve.response_input import conversation_of, with_instructions
from hybridge.serve.response_items import usage_of
from hybridge.serve.schemas.responses import CompactedResponse, CompactRequest

router = APIRouter()
# A summary has at most this part of the model's longest sequence.
_SUMMARY_PART = 4


@router.post("/v1/responses/compact", response_model=CompactedResponse)
async def compact(body: CompactRequest, request: Request) -> Response:
    """Replace a conversation by the model's summary of it, as one item for later requests to begin with."""
    async with await Call.begin(request, body.model) as call:
        earlier = call.earlier_messages(body.previous_response_id)
        messages: list[Mapping[str, Any]] = [*earlier, *conversation_of(body.input or [], call.images, earlier)]
        if not messages:
            raise ApiError(400, "input: expected a conversation, found none: give input", param="input")
        chat = Chat(with_instructions(with_request(messages), body.instructions), tool_choice=NONE)
        job = await start_chat(call, chat, _params(call), None, call.client.namespace(body.prompt_cache_key, None))
        (answer,) = await job.results()
        if not answer.content.strip() or answer.generation is None:
            raise ApiError(500, "expected a summary from the model, found none: send the whole conversation", SERVER)
        return JSONResponse(
            {
                "id": new_id("resp"),
                "object": "response.compaction",
                "created_at": int(time.time()),
                "output": [compaction_item(answer.content)],
                "usage": usage_of(answer.generation, answer.reasoning_tokens),
            }
        )


def _params(call: Call) -> SamplingParams:
    recommended, longest = call.model.llm.recommended_sampling, call.model.llm.max_seq_len
    limit = call.service.settings.max_new_tokens or longest
    most = max(1, min(limit, longest // _SUMMARY_PART))
    return replace(SamplingParams() if recommended.greedy else recommended, max_new_tokens=most)
