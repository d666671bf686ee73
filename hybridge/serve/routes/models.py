"""/v1/models, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.artifact.errors import RequestError
from hybridge.serve.call import Call
from hybridge.serve.errors import NOT_FOUND, ApiError
from hybridge.serve.messages import template_messages
from hybridge.serve.prompts import chat_prompt, text_tokens
from hybridge.serve.schemas.models import Detokenized, DetokenizeRequest, Model, ModelList, Tokenized, TokenizeRequest
from hybridge.serve.service import Service

router = APIRouter()


@router.get("/v1/models", response_model=ModelList)
async def models(request: Request) -> Response:
    """All models, loaded or not."""
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in service.store.names]})


@router.get("/v1/models/{name:path}", response_model=Model)
async def model(name: str, request: Request) -> Response:
    """One model."""
    service: Service = request.app.state.service
    if name not in service.store.names:
        known = ", ".join(service.store.names)
        raise ApiError(404, f"model: expected one of {known}, found {name!r}", NOT_FOUND, "model_not_found", "model")
    return JSONResponse(_model(service, name))


@router.post("/tokenize", response_model=Tokenized)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The tokens of a text, or of a chat."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: expected a prompt or messages, found both or none: give one", param="prompt")
    async with await Call.begin(request, body.model) as call:
        ids = await call.prepare(lambda: _tokens(body, call))
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": call.model.llm.max_seq_len})


@router.post("/detokenize", response_model=Detokenized)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids, special tokens included."""
    async with await Call.begin(request, body.model) as call:
        tokenizer = call.model.llm.tokenizer
        if tokenizer is None:
            raise RequestError("tokens: expected a model with a tokenizer, found none")
        text = await call.prepare(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
        return JSONResponse({"prompt": text})


def _tokens(body: TokenizeRequest, call: Call) -> list[int]:
    llm = call.model.llm
    if body.messages is None:
        return text_tokens(llm, body.prompt or "", body.add_special_tokens)
    messages, variables = template_messages(body.messages, call.images), body.chat_template_kwargs or {}
    control = call.service.settings.control_tokens
    return chat_prompt(llm, messages, variables, control, body.add_generation_prompt, body.template_tools).ids


def _model(service: Service, name: str) -> dict[str, Any]:
    loaded = next((each for each in service.store.loaded if each.name == name), None)
    return {
        "id": name,
        "object": "model",
        "created": service.started if loaded is None else loaded.created,
        "owned_by": "hybridge",
        "max_model_len": None if loaded is None else loaded.llm.max_seq_len,
    }
