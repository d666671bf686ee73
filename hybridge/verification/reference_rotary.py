"""Rotary frequencies of a transformers model, rounded once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def exact_frequencies(model: Any) -> Iterator[None]:
    """Within the block, rotary embeddings have their frequencies as computed in float64 and then rounded.

    transformers computes them in float32. At position p, angles then differ by about p * 2^-24: from a few thousand
    tokens on, as much as the tolerance of a verification.
    """
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    before = []
    for module in model.modules():
        for name, rope_type, kind in _embeddings(module):
            compute = ROPE_INIT_FUNCTIONS.get(rope_type) or module.compute_default_rope_parameters
            # The functions name their type torch.float.
            with mock.patch.object(torch, "float", torch.float64):
                exact, _scaling = compute(module.config, **kind)
            frequencies = getattr(module, name)
            before.append((frequencies, frequencies.data))
            frequencies.data = exact.to(torch.float32)
    try:
        yield
    finally:
        for frequencies, data in before:
            frequencies.data = data


def _embeddings(module: Any) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Of each rotary embedding that ``module`` holds: its buffer's name, its type, and the kind of layer it is for."""
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, dict):
        yield from ((f"{kind}_inv_freq", rope_type, {"layer_type": kind}) for kind, rope_type in kinds.items())
    elif kinds is not None and hasattr(module, "inv_freq"):
        yield "inv_freq", kinds, {}
