"""Which weights of a checkpoint are quantised, and why others are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.quantization.options import GROUP_SIZES, INT4, INT8, QuantizeOptions
from hybridge.quantization.scheme import Scheme

# Parts of the names of modules that stay as they are.
_LEFT = (
    (re.compile(r"(^|\.)mtp\."), "multi-token prediction head"),
    (re.compile(r"(^|\.)(visual|vision_tower|vision_model)\."), "vision"),
    (re.compile(r"(^|\.)(embed_tokens|embeddings?|wte)$"), "embedding"),
    (re.compile(r"\.in_proj_(a|b|ba)$"), "gates of a gated delta net"),
    (re.compile(r"\.(gate|router|shared_expert_gate|router\.layer)$"), "router"),
)
_HEAD = re.compile(r"(^|\.)lm_head$")


@dataclass(frozen=True)
class Roles:
    """schemes: of each quantised module. ignored: modules of linear layers that are not. notes: on exceptions."""

    schemes: Mapping[str, Scheme]
    ignored: list[str]
    default: Scheme
    notes: tuple[str, ...]


def roles_of(tensors: Mapping[str, TensorSlot], options: QuantizeOptions, tied: bool) -> Roles:
    """What becomes of each matrix X.weight of ``tensors``; tied: the head is the embedding, which stays as it is."""
    schemes: dict[str, Scheme] = {}
    ignored: list[str] = []
    stacked = 0
    for name, slot in tensors.items():
        if not slot.dtype.is_floating:
            continue
        stacked += slot.nbytes if len(slot.shape) == 3 and ".conv1d" not in name else 0
        module = name.removesuffix(".weight")
        if len(slot.shape) != 2 or module == name or 0 in slot.shape:
            continue
        is_head = _HEAD.search(module) is not None
        reason = next((reason for pattern, reason in _LEFT if pattern.search(module)), None)
        if reason is None and not (is_head and tied):
            bits, requested = (
                (_BITS[INT8], options.group_of(INT8)) if is_head else (_BITS[options.format], options.group)
            )
            schemes[module] = Scheme(bits, _group(slot.shape[1], requested))
        elif reason != "embedding":
            ignored.append(module)
    if tied:
        ignored.append("lm_head")  # a linear layer of the model, though not a tensor of the checkpoint
    default = Scheme(_BITS[options.format], options.group)
    if default not in schemes.values() and schemes:
        counts = [own for own in schemes.values() if own.bits == default.bits] or list(schemes.values())
        default = max(counts, key=counts.count)
    return Roles(schemes, ignored, default, (*_group_notes(schemes, options), *_stacked_notes(stacked)))


_BITS = {INT4: 4, INT8: 8}


def _group(columns: int, requested: int) -> int | None:
    """The largest group size up to ``requested`` that divides ``columns``; None, a row, where none does."""
    return next((size for size in GROUP_SIZES if size <= requested and columns % size == 0), None)


def _group_notes(schemes: Mapping[str, Scheme], options: QuantizeOptions) -> tuple[str, ...]:
    requested = {bits: options.group_of(name) for name, bits in _BITS.items()}
    others = [module for module, scheme in schemes.items() if scheme.group != requested[scheme.bits]]
    if not others:
        return ()
    first = schemes[others[0]]
    found = "one scale a row" if first.group is None else f"groups of {first.group}"
    return (
        f"{len(others)} of {len(schemes)} matrices have columns that their group size does not divide and get the "
        f"largest one that does, or one scale a row: {others[0]} has {found}",
    )


def _stacked_notes(nbytes: int) -> tuple[str, ...]:
    if not nbytes:
        return ()
    return (f"experts that are stored in one tensor stay as they are: {nbytes} bytes",)
