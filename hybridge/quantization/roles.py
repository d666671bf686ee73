"""Which weights of a checkpoint are quantised, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.roles import (
    BITS,
    FP8,
    HEAD_FORMATS,
    MXFP4,
    NVFP4,
    group_size,
    is_convolution,
    is_embedding,
    is_head,
    is_unchanged,
)
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.scheme import Scheme
from hybridge.quantization.schemes import Fp8Scheme, IntegerScheme, MxFp4Scheme, NvFp4Scheme

# Experts that checkpoints hold in one tensor; vLLM has a linear layer for each of their matrices.
_STACKED = r"re:.*\.experts\..*"


@dataclass(frozen=True)
class Roles:
    """schemes: of each quantised module. ignored: modules of linear layers that are not, or "re:" and an expression.
    notes: on exceptions.
    """

    schemes: Mapping[str, Scheme]
    ignored: list[str]
    notes: tuple[str, ...]

    @property
    def default(self) -> Scheme:
        """The scheme of most modules."""
        schemes = list(self.schemes.values())
        return max(schemes, key=schemes.count)


def roles_of(tensors: Mapping[str, TensorSlot], options: QuantizeOptions, tied: bool) -> Roles:
    """The scheme of each matrix in ``tensors``. tied: the head shares the embedding, which stays as it is."""
    keep_head = tied or options.keep_head
    schemes: dict[str, Scheme] = {}
    ignored: list[str] = []
    others: list[str] = []
    stacked = 0
    for name, slot in tensors.items():
        if not slot.dtype.is_floating:
            continue
        stacked += slot.nbytes if len(slot.shape) == 3 and not is_convolution(name.removesuffix(".weight")) else 0
        module = name.removesuffix(".weight")
        if len(slot.shape) != 2 or module == name or 0 in slot.shape or is_embedding(module):
            continue
        head = is_head(module)
        if (head and keep_head) or is_unchanged(module):
            ignored.append(module)
            continue
        form = HEAD_FORMATS[options.format] if head else options.format
        schemes[module], is_usual = _scheme(form, slot.shape[1], options)
        if not is_usual:
            others.append(module)
    if keep_head and "lm_head" not in ignored:
        ignored.append("lm_head")  # a linear layer of the model, though not a tensor of the checkpoint
    if stacked and not any(".experts." in module for module in schemes):
        ignored.append(_STACKED)
    return Roles(schemes, ignored, (*_other_notes(schemes, others), *_stacked_notes(stacked)))


def _scheme(form: str, columns: int, options: QuantizeOptions) -> tuple[Scheme, bool]:
    """The scheme of a matrix with ``columns`` in the format ``form``, and whether it is the usual one of the format."""
    if form in BITS:
        size = options.group_of(form)
        group = group_size(columns, size)
        # The export does not read 4-bit rows of an odd length.
        bits = 8 if columns % 2 else BITS[form]
        return IntegerScheme(bits, group, options.zero_points and bits == 4), group == size and bits == BITS[form]
    if form == NVFP4 and columns % NvFp4Scheme.group == 0:
        return NvFp4Scheme(), True
    if form == MXFP4 and columns % MxFp4Scheme.group == 0:
        return MxFp4Scheme(), True
    return Fp8Scheme(), form == FP8


def _other_notes(schemes: Mapping[str, Scheme], others: list[str]) -> tuple[str, ...]:
    if not others:
        return ()
    return (
        f"{len(others)} of {len(schemes)} matrices have a number of columns that the group size does not divide, and "
        f"get the next best scheme: {others[0]} has {schemes[others[0]].name}",
    )


def _stacked_notes(nbytes: int) -> tuple[str, ...]:
    if not nbytes:
        return ()
    return (f"experts that are stored in one tensor stay as they are: {nbytes} bytes",)
