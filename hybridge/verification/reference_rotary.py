"""Rotary frequencies of a transformers model: one set for all lengths, and rounded once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class _Embedding:
    """One rotary embedding of ``module``: its type, and the kind of layer it is for, where the module holds several."""

    module: Any
    rope_type: str
    kind: str | None = None

    def buffers(self) -> list[Any]:
        """The frequencies in use, and those that short sequences return to."""
        prefix = "" if self.kind is None else f"{self.kind}_"
        names = [f"{prefix}{name}inv_freq" for name in ("", "original_")]
        return [getattr(self.module, name) for name in names if hasattr(self.module, name)]

    def frequencies(self, tokens: int) -> Any:
        """The frequencies for sequences of up to ``tokens`` tokens."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        compute = ROPE_INIT_FUNCTIONS.get(self.rope_type) or self.module.compute_default_rope_parameters
        kind = {} if self.kind is None else {"layer_type": self.kind}
        length = {"seq_len": tokens} if self.rope_type == "longrope" else {}
        return compute(self.module.config, **kind, **length)[0]


def use_long_factors(model: Any, tokens: int) -> None:
    """Let longrope embeddings use the frequencies for sequences of ``tokens`` tokens at every length, as the artifact
    does."""
    for embedding in _embeddings(model):
        if embedding.rope_type == "longrope":
            for buffer in embedding.buffers():
                buffer.data = embedding.frequencies(tokens).to(buffer.dtype)


@contextlib.contextmanager
def exact_frequencies(model: Any, tokens: int) -> Iterator[None]:
    """Within the block, rotary embeddings have their frequencies as computed in float64 and then rounded.

    transformers computes them in float32. At position p, angles then differ by about p * 2^-24: from a few thousand
    tokens on, as much as the tolerance of a verification. ``tokens``: of the longest sequence.
    """
    import torch

    before = []
    for embedding in _embeddings(model):
        # The functions name their type torch.float.
        with mock.patch.object(torch, "float", torch.float64):
            exact = embedding.frequencies(tokens).to(torch.float32)
        for buffer in embedding.buffers():
            before.append((buffer, buffer.data))
            buffer.data = exact
    try:
        yield
    finally:
        for buffer, data in before:
            buffer.data = data


def _embeddings(model: Any) -> Iterator[_Embedding]:
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, dict):
            yield from (_Embedding(module, own, kind) for kind, own in rope_type.items())
        elif rope_type is not None and hasattr(module, "inv_freq"):
            yield _Embedding(module, rope_type)
