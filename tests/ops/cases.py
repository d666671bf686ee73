"""Random inputs of the operators, rounded to the types that a test passes on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import ml_dtypes
import numpy as np

from tests.ops.oracle import Case, ConvCase, DeltaCase, ScanCase, SsmCase

AnyCase = TypeVar("AnyCase", bound=ConvCase | SsmCase | DeltaCase)

NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """``array`` as float64 holding only values of ``dtype``, so that the oracle sees what the operator sees."""
    return array.astype(NUMPY[dtype]).astype(np.float64)


def conv_case(
    lengths: tuple[int, ...], time: int, channels: int = 7, kernel: int = 4, bias: bool = True, seed: int = 0
) -> ConvCase:
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    return ConvCase(
        x=rng.standard_normal((batch, time, channels)),
        weight=rng.standard_normal((channels, 1, kernel)) / np.sqrt(kernel),
        bias=rng.standard_normal(channels) if bias else None,
        conv_state=rng.standard_normal((batch, channels, kernel)),
        context_lengths=np.array(lengths, dtype=np.int32),
    )


def ssm_case(
    lengths: tuple[int, ...],
    time: int,
    heads: int = 6,
    groups: int = 3,
    head_dim: int = 5,
    state_size: int = 7,
    adversarial: bool = False,
    seed: int = 0,
) -> SsmCase:
    """adversarial: tokens that forget nearly everything among tokens that forget almost nothing."""
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    dt = rng.standard_normal((batch, time, heads)) - 2.0
    if adversarial:
        dt = np.where(rng.random(dt.shape) < 0.1, 40.0, -12.0)
    return SsmCase(
        x=rng.standard_normal((batch, time, heads, head_dim)),
        A=-rng.uniform(0.01, 16.0, heads),
        B=rng.standard_normal((batch, time, groups, state_size)),
        C=rng.standard_normal((batch, time, groups, state_size)),
        D=rng.standard_normal(heads),
        dt=dt,
        dt_bias=rng.standard_normal(heads),
        state=rng.standard_normal((batch, heads, head_dim, state_size)),
        context_lengths=np.array(lengths, dtype=np.int32),
    )


def scan_case(
    lengths: tuple[int, ...],
    time: int,
    channels: int = 6,
    groups: int = 1,
    state_size: int = 7,
    adversarial: bool = False,
    seed: int = 0,
) -> ScanCase:
    """adversarial: as in ssm_case."""
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    dt = rng.standard_normal((batch, time, channels)) - 2.0
    if adversarial:
        dt = np.where(rng.random(dt.shape) < 0.1, 40.0, -12.0)
    return ScanCase(
        x=rng.standard_normal((batch, time, channels)),
        A=-rng.uniform(0.01, 16.0, (channels, state_size)),
        B=rng.standard_normal((batch, time, groups, state_size)),
        C=rng.standard_normal((batch, time, groups, state_size)),
        D=rng.standard_normal(channels),
        dt=dt,
        dt_bias=rng.standard_normal(channels),
        state=rng.standard_normal((batch, 1, channels, state_size)),
        context_lengths=np.array(lengths, dtype=np.int32),
    )


def delta_case(
    lengths: tuple[int, ...],
    time: int,
    key_heads: int = 2,
    value_heads: int = 6,
    key_size: int = 7,
    value_size: int = 5,
    decay: str = "head",
    adversarial: bool = False,
    seed: int = 0,
) -> DeltaCase:
    """adversarial: keys that are nearly the same, written fully, and tokens that forget nearly everything among
    tokens that forget nothing."""
    rng = np.random.default_rng(seed)
    batch = len(lengths)
    keys = rng.standard_normal((batch, time, key_heads, key_size))
    g = -rng.uniform(0.0, 0.3, (batch, time, value_heads, 1 if decay == "head" else key_size))
    beta = rng.uniform(0.0, 1.0, (batch, time, value_heads))
    if adversarial:
        keys = rng.standard_normal((batch, 1, key_heads, key_size)) + 1e-3 * keys
        g = np.where(rng.random(g.shape) < 0.05, -40.0, -1e-4)
        beta = np.ones_like(beta)
    return DeltaCase(
        q=rng.standard_normal((batch, time, key_heads, key_size)),
        k=keys,
        v=rng.standard_normal((batch, time, value_heads, value_size)),
        g=g,
        beta=beta,
        state=rng.standard_normal((batch, value_heads, key_size, value_size)),
        context_lengths=np.array(lengths, dtype=np.int32),
    )


def poisoned(case: AnyCase) -> AnyCase:
    """The case with NaN in every padding token of every token-wise input."""
    changes = {}
    for field in fields(case):
        if field.name in ("x", "B", "C", "dt", "q", "k", "v", "g", "beta"):
            tokens = getattr(case, field.name).copy()
            for row, length in enumerate(case.context_lengths):
                tokens[row, length:] = np.nan
            changes[field.name] = tokens
    return replace(case, **changes)


def in_dtypes(case: Case, data: str, state: str = "float32", side: str = "float32") -> dict[str, str]:
    """Type of every floating point input: ``data`` for T, ``state`` for the state, ``side`` for D and dt_bias."""
    special = {"A": "float32", "g": "float32", "D": side, "dt_bias": side, "state": state}
    return {f.name: special.get(f.name, data) for f in fields(case) if f.name != "context_lengths"}


def rounded_case(case: AnyCase, dtypes: dict[str, str]) -> AnyCase:
    present = {name: dtype for name, dtype in dtypes.items() if getattr(case, name) is not None}
    return replace(case, **{name: rounded(getattr(case, name), dtype) for name, dtype in present.items()})
