"""Rows of a traced text model: slots that all rows share, padded on the left as transformers pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from hybridge.artifact.errors import RequestError
from hybridge.transformers_host.bucket import BucketKind
from hybridge.transformers_host.columns import Columns
from hybridge.transformers_host.rollback import Rollback, recorded
from hybridge.transformers_host.rows import LayerState, TextRows
from hybridge.transformers_host.traced_cache import TracedCache


class Buckets(Protocol):
    """The traced forwards that rows run through."""

    max_cache_len: int

    def check_room(self, batch: int, tokens: int) -> None:
        """RequestError unless ``batch`` rows of ``tokens`` tokens fit."""

    def run(self, kind: BucketKind, inputs: Mapping[str, torch.Tensor], states: list[torch.Tensor]) -> torch.Tensor:
        """Hidden states [rows, q, hidden]; ``states`` are updated in place."""

    def keep(self, states: TracedCache) -> None:
        """Reuse states that are no longer needed."""


class ExportRows(TextRows):
    """``states`` belong to these rows until they are released; a column is a slot of the cache, padding too.

    ``visible`` [rows, 1, 1, slots]: the keys that the next token sees, kept from step to step.
    """

    def __init__(self, backend: Buckets, states: TracedCache) -> None:
        self._backend, self._states, self._released = backend, states, False
        self._rollback: Rollback[list[torch.Tensor]] | None = None
        self._tensors: list[torch.Tensor]
        self._visible: torch.Tensor
        self.columns: Columns
        self._use(states)
        self.clear()

    @property
    def batch(self) -> int:  # type: ignore[override]
        return len(self._tensors[0])

    def step(self, input_ids: torch.Tensor, tokens: np.ndarray | None) -> torch.Tensor:
        count = self.columns.count
        self._backend.check_room(self.batch, count + input_ids.shape[1])
        self._check_padding(tokens, input_ids.shape[1])
        if self._rollback is not None:
            ids = input_ids.cpu().numpy()
            self._rollback.before(self._capture, count, ids, tokens)
        return self._run(input_ids, tokens)

    def select(self, rows: Sequence[int]) -> None:
        self._backend.check_room(len(rows), 0)
        chosen = torch.tensor(list(rows), device=self._visible.device)
        with torch.inference_mode(False), torch.no_grad():
            if len(rows) == self.batch:
                for tensor in (*self._tensors, self._visible):
                    tensor.copy_(tensor.index_select(0, chosen))
            else:
                visible = self._visible.index_select(0, chosen)
                layers = self._states.layers
                self._use(TracedCache([{k: t.index_select(0, chosen) for k, t in layer.items()} for layer in layers]))
                self._visible = visible
        self.columns.select(rows)
        if self._rollback is not None:
            self._rollback.forget()

    def crop(self, columns: int) -> None:
        recurrent = any("conv" in layer for layer in self._states.layers)
        if columns and recurrent:
            rollback = recorded(self._rollback, self.columns.count)
            again = rollback.rewind(self._restore, self.columns.count - columns)
            self._forget_columns(self.columns.count - rollback.start)
            if again is not None:
                self._run(torch.from_numpy(again[0]).to(self._visible.device), again[1])
        elif columns:
            self._forget_columns(columns)
        if self._rollback is not None:
            self._rollback.forget()

    def record(self) -> None:
        if self._rollback is None:
            self._rollback = Rollback()

    def clear(self) -> None:
        self.columns = Columns(self.batch)
        self._visible.fill_(False)
        for layer in self._states.layers:
            for name in ("conv", "recurrent"):
                if name in layer:
                    layer[name].zero_()
        if self._rollback is not None:
            self._rollback.forget()

    def read_layer(self, index: int) -> LayerState:
        count = self.columns.count
        layer = self._states.layers[index]
        return {name: (t[:, :, :count] if name in ("keys", "values") else t).clone() for name, t in layer.items()}

    def write_layers(self, layers: Sequence[LayerState], tokens: np.ndarray) -> None:
        self._backend.check_room(len(tokens), tokens.shape[1])
        self.clear()
        self._check_padding(tokens, tokens.shape[1])
        for mine, theirs in zip(self._states.layers, layers, strict=True):
            for name, tensor in theirs.items():
                target = mine[name][:, :, : tensor.shape[2]] if name in ("keys", "values") else mine[name]
                target.copy_(tensor)
        self._note(tokens.shape[1], tokens)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._backend.keep(self._states)

    def _run(self, input_ids: torch.Tensor, tokens: np.ndarray | None) -> torch.Tensor:
        start, new = self.columns.count, input_ids.shape[1]
        device = self._visible.device
        positions = self._positions(tokens, new)
        self._note(new, tokens)
        slots = torch.arange(start, start + new, device=device)
        inputs = {"input_ids": input_ids.to(device), "position_ids": positions, "slots": slots, "mask": self._visible}
        if new == 1:
            kind = BucketKind.DECODE_ONE if self.batch == 1 else BucketKind.DECODE
        else:
            # A first call of fewer tokens than the convolution is wide extends the states of zeros.
            kind = BucketKind.EXTEND if start or new < self._shortest else BucketKind.PREFILL
            keys = torch.arange(new if kind.fresh else self._visible.shape[3], device=device)
            seen = self._visible[..., : len(keys)] & (keys <= slots[:, None])
            # A token of padding sees itself, as a softmax over nothing would be no number.
            inputs["mask"] = seen | (keys == slots[:, None])
            real = np.ones(input_ids.shape, bool) if tokens is None else tokens
            inputs["tokens"] = torch.from_numpy(real).to(device)
        return self._backend.run(kind, inputs, self._tensors)

    def _note(self, new: int, tokens: np.ndarray | None) -> None:
        """Columns and visible slots after ``new`` columns."""
        start = self.columns.count
        self.columns.append(new, tokens)
        fresh = self._visible[..., start : start + new]
        fresh.copy_(torch.ones_like(fresh) if tokens is None else torch.from_numpy(tokens)[:, None, None])

    def _positions(self, tokens: np.ndarray | None, new: int) -> torch.Tensor:
        if tokens is None and not self.columns.padded:
            start = self.columns.count
            found = torch.arange(start, start + new, device=self._visible.device)
            return found.expand(self.batch, new).contiguous()
        real = np.ones((self.batch, new), bool) if tokens is None else tokens
        before = self.columns.tokens.sum(axis=1, keepdims=True)
        return torch.from_numpy(np.maximum(before + real.cumsum(axis=1) - 1, 0)).to(self._visible.device)

    def _check_padding(self, tokens: np.ndarray | None, new: int) -> None:
        if tokens is None or tokens.all():
            return
        known = np.concatenate([self.columns.tokens, tokens], axis=1).astype(np.int8)
        if new == 1 or (np.diff(known, axis=1) < 0).any():
            raise RequestError(
                'attention_mask: engine="export" takes padding before the tokens of a row, found some behind them: pad '
                'on the left, or use engine="onnxruntime"'
            )

    def _forget_columns(self, columns: int) -> None:
        self.columns.crop(columns)
        self._visible[..., self.columns.count :] = False

    def _use(self, states: TracedCache) -> None:
        self._states, self._tensors = states, states.tensors()
        self._shortest = max((layer["conv"].shape[-1] for layer in states.layers if "conv" in layer), default=1)
        device = self._tensors[0].device
        self._visible = torch.zeros(self.batch, 1, 1, self._backend.max_cache_len, dtype=torch.bool, device=device)

    def _capture(self) -> list[torch.Tensor]:
        return [
            t.clone() for layer in self._states.layers for name, t in layer.items() if name in ("conv", "recurrent")
        ]

    def _restore(self, snapshot: list[torch.Tensor]) -> None:
        rest = iter(snapshot)
        for layer in self._states.layers:
            for name, tensor in layer.items():
                if name in ("conv", "recurrent"):
                    tensor.copy_(next(rest))
