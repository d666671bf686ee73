"""Images in the messages of a request: refused, or replaced by a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hybridge.serve.errors import ApiError
from hybridge.serve.schemas.images import ImageBlock, ImagePart, InputImagePart
from hybridge.serve.settings import PLACEHOLDER

# The same for all images, so that a conversation that is sent again has the same tokens.
IMAGE_TEXT = "\n[An image was sent here, but you cannot see images.]\n"


class TextContent(Protocol):
    """A part of a message that is text."""

    @property
    def text(self) -> str: ...


Content = TextContent | ImagePart | InputImagePart | ImageBlock


class Images:
    """What happens to the images of one request, by ``ServeSettings.images``. ``replaced`` counts them."""

    def __init__(self, setting: str) -> None:
        self._setting, self.replaced = setting, 0

    def text(self, content: str | Iterable[Content] | None) -> str:
        """The joined text of a message's parts. ApiError for an image, if images are refused."""
        if content is None or isinstance(content, str):
            return content or ""
        return "".join([self._part(part) for part in content])

    def _part(self, part: Content) -> str:
        if not isinstance(part, (ImagePart, InputImagePart, ImageBlock)):
            return part.text
        if self._setting != PLACEHOLDER:
            raise ApiError(
                400,
                "expected only text in messages, found an image, and models read only text: leave it out, or set "
                'images = "placeholder" on the server',
                param="input" if isinstance(part, InputImagePart) else "messages",
            )
        self.replaced += 1
        return IMAGE_TEXT
