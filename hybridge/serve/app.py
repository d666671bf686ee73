"""The application: routes, error handlers and the middleware."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.version import __version__
from hybridge.serve.call import ClientDisconnectedError
from hybridge.serve.errors import api_error, error_response
from hybridge.serve.middleware import RequestMiddleware
from hybridge.serve.routes import (
    chat,
    compact,
    completions,
    embeddings,
    health,
    messages,
    models,
    page,
    responses,
    sessions,
    stored_responses,
)
from hybridge.serve.schemas.base import AnthropicErrorBody, ErrorBody
from hybridge.serve.service import Service
from hybridge.serve.validation import validation_error

_ROUTES = (
    completions,
    chat,
    embeddings,
    responses,
    compact,
    stored_responses,
    messages,
    sessions,
    models,
    health,
    page,
)
_ERRORS = (400, 401, 403, 404, 408, 413, 429, 500, 503, 504)


def create_app(service: Service) -> ASGIApp:
    """The ASGI application of a server; models are loaded by its owner."""
    app = FastAPI(
        title="Hybridge", version=__version__, docs_url=None, redoc_url=None, responses={422: {"model": ErrorBody}}
    )
    app.state.service = service
    for module in _ROUTES:
        body = AnthropicErrorBody if module is messages else ErrorBody
        app.include_router(module.router, responses={status: {"model": body} for status in _ERRORS})
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (HTTPException, HybridgeError):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(Exception, _broken)
    app.add_exception_handler(ClientDisconnectedError, _disconnected)
    return RequestMiddleware(app, service)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request.url.path, validation_error(list(error.errors())))


async def _broken(request: Request, error: Exception) -> Response:
    """The response to an unexpected error, which ``RequestMiddleware`` logs."""
    return error_response(request.url.path, api_error(error))


async def _failed(request: Request, error: Exception) -> Response:
    found = api_error(error)
    if found.status_code == 500:
        service: Service = request.app.state.service
        service.log.error("failed", error, request=request.state.request_id)
    return error_response(request.url.path, found)


async def _disconnected(request: Request, error: Exception) -> Response:
    """Not sent: the client has disconnected."""
    return Response(status_code=499)
