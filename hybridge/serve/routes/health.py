"""/health and /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hybridge.serve.service import Service

router = APIRouter()


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The server answers."""
    return {"status": "live"}


@router.get("/health")
@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Status 200 when a token can be computed, else 503."""
    service: Service = request.app.state.service
    if service.draining or not await service.store.ready():
        return JSONResponse({"status": "draining" if service.draining else "not ready"}, 503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """In Prometheus' text format."""
    service: Service = request.app.state.service
    return Response(await service.metrics.render(service.store.loaded), media_type=CONTENT_TYPE_LATEST)
