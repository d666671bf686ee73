"""A full-precision checkpoint whose matrices are rounded while they are written into an artifact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import Checkpoint
from hybridge.exporter.rounding.roles import (
    BITS,
    FLOAT_GROUPS,
    FP8,
    HEAD_FORMATS,
    INT4,
    INT8,
    group_size,
    is_convolution,
    is_embedding,
    is_head,
    is_unchanged,
)
from hybridge.exporter.rounding.siblings import siblings
from hybridge.exporter.rounding.weight import Peak, RoundedWeight

# Columns that share a scale in integer formats: int4 weights then take 0.26 of the bytes of bfloat16.
_GROUP = 128
# Those of an embedding of its own format: 4 bits of a tied head need smaller groups.
_EMBEDDING_GROUPS = {INT4: 32, INT8: 32}


def rounded_checkpoint(source: Checkpoint, names: Iterable[str], form: str, tied: bool) -> Checkpoint:
    """``source`` with the matrices ``names`` in the format ``form``, except those that must stay as they are.

    tied: the head is the embedding, which then gets the format of heads. UnsupportedError: the checkpoint is quantised
    already, or has no such matrix.
    """
    if source.quantized:
        raise UnsupportedError(
            f"quantize: expected a checkpoint in full precision for {form}, found a quantised one: leave the option "
            "out, or give the original checkpoint"
        )
    forms: dict[str, tuple[str, int | None]] = {}
    unchanged = 0
    for name in dict.fromkeys(names):
        slot, module = source.tensors[name], name.removesuffix(".weight")
        is_bias = len(slot.shape) == 2 and module == name
        if len(slot.shape) != 2 or is_bias or is_unchanged(module):
            unchanged += slot.nbytes if len(slot.shape) == 3 and not is_convolution(name.removesuffix(".weight")) else 0
            continue
        is_output = is_head(module) or (tied and is_embedding(module))
        forms[module] = _format(HEAD_FORMATS[form] if is_output else form, slot.shape[1])
    if not forms:
        raise UnsupportedError("quantize: expected matrices to quantise, found none: leave the option out")
    notes = [f"the weights were rounded to the nearest {form}: `hybridge quantize` gives more precise weights"]
    if unchanged:
        notes.append(f"experts that are stored in one tensor stay as they are: {unchanged} bytes")
    weights = _weights(source.tensors, forms)
    return replace(
        source,
        tensors={**source.tensors, **{name: weight.logical_slot() for name, weight in weights.items()}},
        quantized={name: weight.tensor() for name, weight in weights.items()},
        notes=(*source.notes, *notes),
    )


def with_rounded_embedding(source: Checkpoint, name: str, form: str) -> Checkpoint:
    """``source`` with the embedding ``name`` in the integer format ``form``; a tied head reads the same numbers.

    UnsupportedError: it is quantised in the checkpoint.
    """
    if name in source.quantized:
        raise UnsupportedError(
            f"quantize_embedding: expected an embedding in full precision for {form}, found {name} in "
            f"{source.quantized[name].format}: leave the option out"
        )
    slot = source.tensors[name]
    columns = slot.shape[1]
    form = INT8 if columns % 2 else form
    weight = RoundedWeight(slot, form, group_size(columns, _EMBEDDING_GROUPS[form]), Peak((slot,)), search=True)
    return replace(
        source,
        tensors={**source.tensors, name: weight.logical_slot()},
        quantized={**source.quantized, name: weight.tensor()},
        notes=(*source.notes, f"the embedding was rounded to the nearest {form}"),
    )


def _weights(
    tensors: Mapping[str, TensorSlot], forms: Mapping[str, tuple[str, int | None]]
) -> dict[str, RoundedWeight]:
    """Name to the weight of each module in ``forms``, which has its format and group size."""
    peaks: dict[tuple[str, ...], Peak] = {}
    weights = {}
    for module, (form, group) in forms.items():
        names = tuple(f"{each}.weight" for each in siblings(module, forms))
        peak = peaks.setdefault(names, Peak(tuple(tensors[name] for name in names)))
        name = f"{module}.weight"
        weights[name] = RoundedWeight(tensors[name], form, group, peak)
    return weights


def _format(form: str, columns: int) -> tuple[str, int | None]:
    """The format of a matrix with ``columns``, and its group size; None: each row has one scale."""
    if form == INT4 and columns % 2:
        form = INT8
    if form in BITS:
        return form, group_size(columns, _GROUP)
    group = FLOAT_GROUPS.get(form)
    return (FP8, None) if group is None or columns % group else (form, group)
