"""The page at /, its files, and the memory of a model that it shows."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.artifact.resources import data_folder
from hybridge.artifact.untrusted_file import read_inside
from hybridge.runtime.serving.memory_view import MemoryView, PoolUse
from hybridge.serve.errors import NOT_FOUND, ApiError
from hybridge.serve.service import Service

router = APIRouter(include_in_schema=False)
_INDEX = "index.html"
_BYTES = 1 << 20
_TYPES = {"index.html": "text/html", "page.css": "text/css"} | dict.fromkeys(
    ("main.js", "chat.js", "memory.js"), "text/javascript"
)
_HEADERS = {
    # The page loads nothing from elsewhere and cannot be shown within another one.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    """A page with a chat and a view of the memory."""
    return _file(_INDEX)


@router.get("/page/{name}")
async def page_file(name: str) -> Response:
    """A file of the page."""
    if name not in _TYPES:
        raise ApiError(404, f"expected a file of the page, found {name!r}", NOT_FOUND)
    return _file(name)


@router.get("/memory/{name:path}")
async def memory(name: str, request: Request) -> Response:
    """Blocks, slots, requests and prefix tree of a model, without tokens.

    Where clients have keys, what belongs to single requests is left out: it would reveal other clients' prompts.
    """
    service: Service = request.app.state.service
    if name not in service.store.names:
        raise ApiError(404, f"model: expected one of {', '.join(service.store.names)}, found {name!r}", NOT_FOUND)
    loaded = next((each for each in service.store.loaded if each.name == name), None)
    if loaded is None:
        return JSONResponse({"loaded": False})
    return JSONResponse(_shown(await loaded.llm.memory_view(), service.keys is None))


def _shown(view: MemoryView, shows_requests: bool) -> dict[str, Any]:
    found = {**asdict(view), "blocks": _use(view.blocks), "slots": _use(view.slots), "loaded": True}
    return found if shows_requests else {**found, "sequences": [], "nodes": None, "hidden_nodes": 0}


def _use(use: PoolUse) -> dict[str, int]:
    return {**asdict(use), "free": use.free}


def _file(name: str) -> Response:
    return Response(_content(name), media_type=_TYPES[name], headers=_HEADERS)


@cache
def _content(name: str) -> bytes:
    return read_inside(data_folder("serve") / "page", name, _BYTES)
