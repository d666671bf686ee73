"""A text model's forward for one kind of call, traced with torch.export: weights, inputs and cache are arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.trace.quiet import quiet
from hybridge.transformers_host.traced_cache import TracedCache

# Sizes while tracing: no axis is one, which would be taken for constant.
_ROWS, _TOKENS = 2, 9
INPUTS = ("input_ids", "position_ids", "slots", "mask", "tokens")


class BucketKind(Enum):
    """The steps that a bucket serves. ``fresh``: nothing is cached yet; ``single``: one token; ``one_row``: one row."""

    PREFILL = "prefill"
    EXTEND = "extend"
    DECODE = "decode"
    DECODE_ONE = "decode_one"

    @property
    def fresh(self) -> bool:
        return self is BucketKind.PREFILL

    @property
    def single(self) -> bool:
        return self in (BucketKind.DECODE, BucketKind.DECODE_ONE)


class TracedForward(nn.Module):
    """The text model with everything that it reads as an argument; what it writes, it writes into ``cache``."""

    def __init__(self, text_model: nn.Module, kind: BucketKind) -> None:
        super().__init__()
        self.__dict__["text_model"], self.kind = text_model, kind

    def forward(
        self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor], cache: TracedCache
    ) -> torch.Tensor:
        """``inputs`` as in ``bucket_inputs`` -> hidden states [rows, q, hidden] after the final norm."""
        model = self.__dict__["text_model"]
        states = cache.for_model(inputs["slots"], self.kind.fresh)
        tokens = inputs.get("tokens")
        arguments: dict[str, Any] = {"use_cache": True}
        if takes_cache_params(model):
            arguments |= {"cache_params": states, "attention_mask": tokens}
        else:
            mask = _score_mask(inputs["mask"], model)
            recurrent = any("conv" in layer for layer in cache.layers)
            kinds = {"full_attention": mask, "linear_attention": tokens, "conv": tokens}
            arguments |= {
                "past_key_values": states,
                "position_ids": inputs["position_ids"],
                "attention_mask": kinds if recurrent else mask,
            }
        output = torch.func.functional_call(model, dict(weights), (inputs["input_ids"],), arguments)
        return output[0]


def trace_bucket(
    text_model: nn.Module, kind: BucketKind, weights: Mapping[str, torch.Tensor], cache: TracedCache, slots: int
) -> ExportedProgram:
    """The program of ``kind``. ``cache`` has one row of zeros and that many slots; rows and (not for decode) tokens are
    free.

    UnsupportedError when torch.export cannot trace the model.
    """
    rows = 1 if kind is BucketKind.DECODE_ONE else _ROWS
    device = cache.tensors()[0].device
    inputs = example_inputs(kind, rows, slots, device)
    states = TracedCache([{k: t.repeat(rows, *[1] * (t.ndim - 1)) for k, t in layer.items()} for layer in cache.layers])
    free = Dim.STATIC if rows == 1 else Dim.AUTO
    shapes: Any = (
        {name: {} for name in weights},
        {name: _free_axes(name, kind, free, value.ndim) for name, value in inputs.items()},
        [{0: free} for _ in states.tensors()],
    )
    try:
        with torch.no_grad(), quiet("torch.export", "torch._export", "torch.fx"):
            return torch.export.export(
                TracedForward(text_model, kind).eval(),
                (dict(weights), inputs, states),
                dynamic_shapes=shapes,
                strict=False,
            )
    except Exception as error:  # tracing ends in many kinds of errors, of torch and of the model
        raise UnsupportedError(
            f"{type(text_model).__name__} cannot be traced with torch.export ({str(error).splitlines()[0]}): "
            'use engine="onnxruntime"'
        ) from error


def example_inputs(kind: BucketKind, rows: int, length: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Inputs of a bucket: input_ids and position_ids [rows, q], slots [q] of the cache, mask [rows, 1, q, keys] bool.

    ``tokens`` [rows, q] bool is False for padding; decode has none. Keys are those of the call where nothing is cached
    yet, else all ``length`` slots, also of a model without attention.
    """
    count = 1 if kind.single else min(_TOKENS, length)
    start = 0 if kind.fresh else 1
    slots = torch.arange(start, start + count, device=device)
    keys = torch.arange(count if kind.fresh else length, device=device)
    inputs = {
        "input_ids": torch.ones(rows, count, dtype=torch.long, device=device),
        "position_ids": slots.repeat(rows, 1),
        "slots": slots,
        "mask": (keys <= slots[:, None]).repeat(rows, 1, 1, 1),
    }
    if not kind.single:
        inputs["tokens"] = torch.ones(rows, count, dtype=torch.bool, device=device)
    return inputs


def takes_cache_params(text_model: nn.Module) -> bool:
    """Whether the forward is that of a model of recurrent layers alone, with its own argument for the cache."""
    return "cache_params" in inspect.signature(text_model.forward).parameters


def _score_mask(mask: torch.Tensor, model: Any) -> torch.Tensor:
    if model.config._attn_implementation != "eager":
        return mask
    lowest = torch.finfo(model.dtype).min
    return torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(~mask, lowest)


def _free_axes(name: str, kind: BucketKind, rows: Any, rank: int) -> dict[int, Any]:
    tokens = Dim.STATIC if kind.single else Dim.AUTO
    if name == "slots":
        return {0: tokens}
    axes = {0: rows, **dict.fromkeys(range(1, rank), Dim.STATIC)}
    axes[rank - 2 if name == "mask" else 1] = tokens
    if name == "mask" and kind.fresh:
        axes[3] = Dim.AUTO
    return axes
