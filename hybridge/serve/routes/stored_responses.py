"""/v1/responses/{response_id}: stored responses, and the input of their requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from hybridge.serve.errors import ApiError
from hybridge.serve.schemas.responses import DeletedResponse, InputItemList, ResponseObject
from hybridge.serve.service import Service
from hybridge.serve.stored_responses import StoredResponse

router = APIRouter()


@router.get("/v1/responses/{response_id}", response_model=ResponseObject)
async def response(response_id: str, request: Request, stream: bool = False) -> Response:
    """A stored response."""
    if stream:
        raise ApiError(400, "stream: expected false for a stored response, found true: leave it out", param="stream")
    return JSONResponse(_stored(request, response_id).response)


@router.delete("/v1/responses/{response_id}", response_model=DeletedResponse)
async def delete(response_id: str, request: Request) -> Response:
    """Delete a response; those that continue it stay."""
    service: Service = request.app.state.service
    service.responses.delete(request.state.client.tenant, response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", response_model=InputItemList)
async def input_items(
    response_id: str,
    request: Request,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """The items of the request's own input, the last one first unless ``order`` is "asc"."""
    items: list[Any] = list(_stored(request, response_id).input_items)
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, f"after: expected the id of an input item, found {after[:80]!r}", param="after")
        items = items[ids.index(after) + 1 :]
    shown = items[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": shown, **ends, "has_more": len(items) > limit})


def _stored(request: Request, response_id: str) -> StoredResponse:
    service: Service = request.app.state.service
    return service.responses.get(request.state.client.tenant, response_id)
