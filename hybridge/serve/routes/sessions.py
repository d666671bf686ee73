"""/v1/sessions: conversations whose KV and states are saved, so that they continue after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.artifact.errors import ArtifactError, HybridgeError, RequestError
from hybridge.runtime.generation.prompts import checked_ids
from hybridge.serve.api_keys import Client
from hybridge.serve.call import Call
from hybridge.serve.errors import ApiError
from hybridge.serve.messages import template_messages
from hybridge.serve.prompts import chat_prompt, text_tokens
from hybridge.serve.schemas.sessions import Deleted, LoadRequest, SaveRequest, Session, SessionList
from hybridge.serve.service import Service
from hybridge.serve.session_files import SessionFile, described

router = APIRouter()


@router.post("/v1/sessions", response_model=Session)
async def save(body: SaveRequest, request: Request) -> Response:
    """Save the cached part of a conversation; a session of this name is replaced."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "messages: expected messages or a prompt, found both or none: give one", param="messages")
    async with await Call.begin(request, body.model) as call:
        path = call.service.sessions.to_write(call.client, body.name)
        ids = await call.prepare(lambda: _tokens(body, call))
        namespace = call.client.namespace(body.prompt_cache_key, body.cache_salt)
        with _paths_in_the_log(call, body.name):
            saved = await call.model.llm.save_session(path, ids, namespace)
        return JSONResponse(_session(described(path), saved.length))


@router.post("/v1/sessions/{name}/load", response_model=Session)
async def load(name: str, body: LoadRequest, request: Request) -> Response:
    """Put a session into the prefix cache, under the names that it was saved with."""
    async with await Call.begin(request, body.model) as call:
        path = call.service.sessions.existing(call.client, name)
        with _paths_in_the_log(call, name):
            loaded = await call.model.llm.load_session(path)
        return JSONResponse(_session(described(path), loaded.length))


@router.get("/v1/sessions", response_model=SessionList)
async def sessions(request: Request) -> Response:
    """The client's sessions."""
    found = _service(request).sessions.all(_client(request))
    return JSONResponse({"object": "list", "data": [_session(each, None) for each in found]})


@router.delete("/v1/sessions/{name}", response_model=Deleted)
async def delete(name: str, request: Request) -> Response:
    """Delete a session's file."""
    _service(request).sessions.existing(_client(request), name).unlink(missing_ok=True)
    return JSONResponse({"object": "session.deleted", "name": name, "deleted": True})


@contextmanager
def _paths_in_the_log(call: Call, name: str) -> Iterator[None]:
    """Errors of a session's file name the session, and not the server's folders."""
    try:
        yield
    except HybridgeError as error:
        call.service.log.error("session", error, name=name)
        status = 400 if isinstance(error, (RequestError, ArtifactError)) else 500
        raise ApiError(status, f"session {name}: it cannot be saved or loaded: see the server's log") from error


def _tokens(body: SaveRequest, call: Call) -> list[int]:
    llm = call.model.llm
    if body.messages is not None:
        messages, control = template_messages(body.messages, call.images), call.service.settings.control_tokens
        tools = None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools]
        return chat_prompt(llm, messages, body.chat_template_kwargs or {}, control, False, tools).ids
    if isinstance(body.prompt, str):
        return text_tokens(llm, body.prompt)
    return list(checked_ids(body.prompt, "prompt", llm.config.vocab_size, llm.max_seq_len))


def _session(file: SessionFile, tokens: int | None) -> dict[str, Any]:
    return {"object": "session", "name": file.name, "tokens": tokens, "bytes": file.bytes, "created": file.created}


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _client(request: Request) -> Client:
    client: Client = request.state.client
    return client
