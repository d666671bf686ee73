"""float64 loops over rows and tokens: the oracle for every implementation of the operators."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


class Case:
    """A call of an operator; the fields are its inputs, in their order."""

    def inputs(self) -> list[np.ndarray | None]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class ConvCase(Case):
    """Inputs of causal_conv1d as float64 arrays; x is [batch, time, conv_dim]."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray | None
    conv_state: np.ndarray
    context_lengths: np.ndarray


@dataclass(frozen=True)
class SsmCase(Case):
    """Inputs of update_ssm_state as float64 arrays; x is [batch, time, heads, head_dim]."""

    x: np.ndarray
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    dt: np.ndarray
    dt_bias: np.ndarray
    state: np.ndarray
    context_lengths: np.ndarray


class ScanCase(SsmCase):
    """Inputs of selective_scan as float64 arrays; x is [batch, time, channels]."""


@dataclass(frozen=True)
class DeltaCase(Case):
    """Inputs of gated_delta_rule as float64 arrays; q is [batch, time, key_heads, key_size]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    state: np.ndarray
    context_lengths: np.ndarray


def conv_step_loop(case: ConvCase, activation: str) -> tuple[np.ndarray, np.ndarray]:
    """y and conv_state_out of a sliding window; padding gives zeros."""
    y, states = np.zeros_like(case.x), case.conv_state.copy()
    for b, length in enumerate(case.context_lengths):
        for t in range(length):
            states[b] = np.concatenate([states[b, :, 1:], case.x[b, t, :, None]], axis=1)
            out = (states[b] * case.weight[:, 0, :]).sum(-1) + (0.0 if case.bias is None else case.bias)
            y[b, t] = out / (1.0 + np.exp(-out)) if activation == "silu" else out
    return y, states


def ssm_step_loop(
    case: SsmCase, dt_softplus: int = 1, time_step_min: float = 0.0, time_step_max: float = np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """y and state_out of the recurrence of arXiv 2405.21060, equation 1, discretised; padding gives zeros."""
    y, states = np.zeros_like(case.x), case.state.copy()
    ratio = case.x.shape[2] // case.B.shape[2]
    for b, length in enumerate(case.context_lengths):
        for t in range(length):
            step = _time_step(case.dt[b, t] + case.dt_bias, dt_softplus, time_step_min, time_step_max)
            B, C = np.repeat(case.B[b, t], ratio, axis=0), np.repeat(case.C[b, t], ratio, axis=0)
            written = (step[:, None] * case.x[b, t])[:, :, None] * B[:, None, :]
            states[b] = np.exp(case.A * step)[:, None, None] * states[b] + written
            y[b, t] = np.einsum("hpn,hn->hp", states[b], C) + case.D[:, None] * case.x[b, t]
    return y, states


def scan_step_loop(
    case: ScanCase, dt_softplus: int = 1, time_step_min: float = 0.0, time_step_max: float = np.inf
) -> tuple[np.ndarray, np.ndarray]:
    """y and state_out of the recurrence of arXiv 2312.00752, equation 2a, discretised; padding gives zeros."""
    y, states = np.zeros_like(case.x), case.state.copy()
    ratio = case.x.shape[2] // case.B.shape[2]
    for b, length in enumerate(case.context_lengths):
        for t in range(length):
            step = _time_step(case.dt[b, t] + case.dt_bias, dt_softplus, time_step_min, time_step_max)
            for c in range(case.x.shape[2]):
                written = step[c] * case.x[b, t, c] * case.B[b, t, c // ratio]
                states[b, 0, c] = np.exp(case.A[c] * step[c]) * states[b, 0, c] + written
                y[b, t, c] = states[b, 0, c] @ case.C[b, t, c // ratio] + case.D[c] * case.x[b, t, c]
    return y, states


def _time_step(dt: np.ndarray, softplus: int, least: float, most: float) -> np.ndarray:
    return np.clip(np.logaddexp(dt, 0.0) if softplus else dt, least, most)


def delta_step_loop(
    case: DeltaCase, use_qk_l2norm: int = 1, scale: float = 0.0, decay: str = "head"
) -> tuple[np.ndarray, np.ndarray]:
    """o and state_out of the recurrence of arXiv 2412.06464, equation 10; padding gives zeros.

    The last axis of g selects the kind of decay.
    """
    o, states = np.zeros_like(case.v), case.state.copy()
    ratio, size = case.v.shape[2] // case.q.shape[2], case.q.shape[3]
    for b, length in enumerate(case.context_lengths):
        for t in range(length):
            q, k = (np.repeat(tensor[b, t], ratio, axis=0) for tensor in (case.q, case.k))
            if use_qk_l2norm:
                q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
            states[b] *= np.exp(case.g[b, t])[:, :, None]
            u = case.beta[b, t][:, None] * (case.v[b, t] - np.einsum("hn,hnm->hm", k, states[b]))
            states[b] += k[:, :, None] * u[:, None, :]
            o[b, t] = np.einsum("hn,hnm->hm", q * (scale or size**-0.5), states[b])
    return o, states


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of the oracle; NaN or infinity anywhere gives infinity."""
    difference = np.linalg.norm(np.asarray(found, dtype=np.float64) - expected)
    return float(difference / max(np.linalg.norm(expected), 1e-30)) if np.isfinite(difference) else float("inf")
