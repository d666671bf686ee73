"""/v1/embeddings."""

from __future__ import annotations

from typing import Literal

from hybridge.serve.schemas.base import Label, RequestBody, ResponseBody
from hybridge.serve.schemas.completions import Prompts


class EmbeddingRequest(RequestBody):
    """pooling: the mean of the hidden states of all tokens, or that of the last one. normalize: to length 1.

    ``dimensions`` has to be the model's own, if it is given.
    """

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] = "mean"
    normalize: bool = True
    dimensions: int | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    user: Label = None


class Embedding(ResponseBody):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(ResponseBody):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(ResponseBody):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
