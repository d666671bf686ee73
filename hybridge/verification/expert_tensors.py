"""Joins gpt-oss's experts, each stored in its own tensors, to one tensor for each matrix, as in transformers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.verification.dequantized import MeantWeight

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def joined_experts(weights: Iterable[MeantWeight], tensors: Mapping[str, TensorSlot]) -> Iterator[MeantWeight]:
    """``weights``, those of single experts joined to gate_up_proj and down_proj [experts, rows, columns].

    The biases in ``tensors`` are joined too: gate_up_proj_bias [experts, rows], the gate and what it gates in turns,
    and down_proj_bias. CheckpointError: a matrix or a bias is missing.
    """
    found: dict[str, dict[tuple[int, str], MeantWeight]] = {}
    for weight in weights:
        name = _EXPERT.fullmatch(weight.name)
        if name is None:
            yield weight
        else:
            found.setdefault(name[1], {})[int(name[2]), name[3]] = weight
    for module, matrices in found.items():
        count = len(matrices) // 3
        every = {(number, last) for number in range(count) for last in ("gate_proj", "up_proj", "down_proj")}
        if (missing := every - set(matrices)) or len(matrices) % 3:
            lacked = ".".join(map(str, min(missing, default=(count, "gate_proj"))))
            raise CheckpointError(
                f"expected all matrices of the experts {module} quantised, found that {lacked} is not: fetch the "
                "checkpoint again"
            )
        for whole, lasts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            parts = [[matrices[number, last] for last in lasts] for number in range(count)]
            yield _matrices(f"{module}.{whole}", parts)
            biases = [[f"{module}.{number}.{last}.bias" for last in lasts] for number in range(count)]
            for bias in (bias for own in biases for bias in own):
                if bias not in tensors:
                    raise CheckpointError(f"expected the tensor {bias}, found none: fetch the checkpoint again")
            yield _biases(f"{module}.{whole}_bias", biases, tensors)


def _matrices(name: str, parts: Sequence[Sequence[MeantWeight]]) -> MeantWeight:
    shape = (len(parts), sum(part.shape[0] for part in parts[0]), parts[0][0].shape[1])
    stored = tuple(slot for own in parts for part in own for slot in part.stored)
    return MeantWeight(name, shape, stored, lambda: np.stack([np.concatenate([p.floats() for p in o]) for o in parts]))


def _biases(name: str, parts: Sequence[Sequence[str]], tensors: Mapping[str, TensorSlot]) -> MeantWeight:
    shape = (len(parts), sum(tensors[part].shape[0] for part in parts[0]))
    stored = tuple(part for own in parts for part in own)
    return MeantWeight(name, shape, stored, partial(_bias_rows, parts, tensors))


def _bias_rows(parts: Sequence[Sequence[str]], tensors: Mapping[str, TensorSlot]) -> np.ndarray:
    rows = [np.stack([tensors[part].map() for part in own], axis=-1).reshape(-1) for own in parts]
    return np.stack(rows).astype(np.float32)
