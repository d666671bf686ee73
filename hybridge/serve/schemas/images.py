"""Images in messages, as the three APIs describe them. Models read only text, so nothing of an image is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.serve.schemas.base import NO_EFFECT, CacheControl, Label, RequestBody

Url = Annotated[str, Field(pattern=r"^(https?://|data:image/)")]


class ImageUrl(RequestBody):
    url: Url
    detail: Label = None


class ImagePart(RequestBody):
    """Of OpenAI's chats."""

    type: Literal["image_url"]
    image_url: Annotated[ImageUrl, NO_EFFECT]


class InputImagePart(RequestBody):
    """Of Open Responses."""

    type: Literal["input_image"]
    image_url: Annotated[Url, NO_EFFECT]
    detail: Label = None


class ImageData(RequestBody):
    """``data`` is base64."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, NO_EFFECT]


class ImageLink(RequestBody):
    type: Literal["url"]
    url: Url


class ImageBlock(RequestBody):
    """Of Anthropic's messages."""

    type: Literal["image"]
    source: Annotated[ImageData | ImageLink, Field(discriminator="type")]
    cache_control: CacheControl = None
