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

    before = {}
    for module in model.modules():
        if hasattr(module, "inv_freq") and hasattr(module, "rope_type"):
            compute = ROPE_INIT_FUNCTIONS.get(module.rope_type) or module.compute_default_rope_parameters
            # The functions name their type torch.float.
            with mock.patch.object(torch, "float", torch.float64):
                exact, _scaling = compute(module.config)
            before[module] = module.inv_freq.data
            module.inv_freq.data = exact.to(torch.float32)
    try:
        yield
    finally:
        for module, frequencies in before.items():
            module.inv_freq.data = frequencies
