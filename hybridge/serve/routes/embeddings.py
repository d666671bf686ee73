"""/v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.runtime.generation import Generation
from hybridge.serve.call import Call
from hybridge.serve.errors import ApiError
from hybridge.serve.prompts import prompts_of
from hybridge.serve.schemas.embeddings import EmbeddingList, EmbeddingRequest

router = APIRouter()


@router.post("/v1/embeddings", response_model=EmbeddingList)
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The hidden states of texts or token ids, after the model's last layer."""
    async with await Call.begin(request, body.model) as call:
        llm = call.model.llm
        if not call.model.embeddings:
            raise ApiError(
                400, "model: expected one with embeddings, found one without: see --embeddings", param="model"
            )
        if body.dimensions not in (None, llm.config.hidden_size):
            raise ApiError(
                400,
                f"dimensions: expected the model's {llm.config.hidden_size}, found {body.dimensions}",
                param="dimensions",
            )
        most = call.service.settings.max_prompt_tokens
        prompts = await call.prepare(lambda: prompts_of(llm, body.input, most))
        namespace = call.client.namespace(body.prompt_cache_key, body.cache_salt)
        tokens = sum(map(len, prompts))
        await call.admit(len(prompts), tokens)
        work = [llm.embed(ids, body.pooling, namespace=namespace) for ids in prompts]
        answers = await call.unless_disconnected(call.in_time(_all(work)))
        call.count([[answer] for answer in answers])
        data = [
            {"object": "embedding", "index": index, "embedding": _shown(answer, body)}
            for index, answer in enumerate(answers)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": usage})


async def _all(work: list[Any]) -> list[Generation]:
    """All results; the first error, or a cancellation, ends the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _shown(answer: Generation, body: EmbeddingRequest) -> list[float] | str:
    vector = answer.hidden
    assert vector is not None
    if body.normalize:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
