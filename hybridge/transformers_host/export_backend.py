"""A text model behind which its own forward runs, traced into buckets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import StaticCache

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.layer_types import ATTENTION, MAMBA
from hybridge.transformers_host.bound_program import Program, bind_program, without_python
from hybridge.transformers_host.bucket import INPUTS, BucketKind, takes_cache_params, trace_bucket
from hybridge.transformers_host.bucket_store import BucketStore
from hybridge.transformers_host.cache_bridge import layer_state
from hybridge.transformers_host.export_rows import ExportRows
from hybridge.transformers_host.rows import TextBackend
from hybridge.transformers_host.traced_cache import TracedCache


class ExportBackend(TextBackend):
    """``text_model``'s forward in buckets, which are traced at their first use and kept in ``cache_folder``."""

    def __init__(self, text_model: Any, cache_folder: Path, max_cache_len: int, max_batch_size: int) -> None:
        """UnsupportedError for layers whose state the buckets do not hold."""
        self.max_cache_len, self.max_batch_size = max_cache_len, max_batch_size
        self.text_model: nn.Module = text_model
        self.empty = _empty_cache(text_model, max_cache_len)
        self.layer_types = tuple(
            ATTENTION if "keys" in layer else MAMBA if layer else "mlp" for layer in self.empty.layers
        )
        self.traced = 0
        self._weights = {k: v.detach() for k, v in (*text_model.named_parameters(), *text_model.named_buffers())}
        self._store = BucketStore(cache_folder, text_model, max_cache_len)
        self._programs: dict[BucketKind, Program] = {}
        self._idle: dict[int, list[TracedCache]] = {}

    def rows(self, batch: int, tokens: int) -> ExportRows:
        self.check_room(batch, tokens)
        states = self._idle.pop(batch, [])
        return ExportRows(self, states[0] if states else self.allocate(batch))

    def allocate(self, batch: int) -> TracedCache:
        """Zeros for ``batch`` rows."""
        return TracedCache(
            [{k: t.new_zeros((batch, *t.shape[1:])) for k, t in layer.items()} for layer in self.empty.layers]
        )

    def keep(self, states: TracedCache) -> None:
        """Reuse states that are no longer needed."""
        self._idle[len(states.tensors()[0])] = [states]

    def run(self, kind: BucketKind, inputs: Mapping[str, torch.Tensor], states: list[torch.Tensor]) -> torch.Tensor:
        """Hidden states [rows, q, hidden]; ``states`` are updated in place."""
        arguments = [*(inputs[name] for name in INPUTS if name in inputs), *states]
        with torch.no_grad():
            if kind not in self._programs:
                program = bind_program(self._program(kind), self._weights)
                self._programs[kind] = without_python(program, arguments) if kind is BucketKind.DECODE_ONE else program
            return self._programs[kind](*arguments)[0]

    def close(self) -> None:
        self._programs.clear()
        self._idle.clear()

    def _program(self, kind: BucketKind) -> Any:
        program = self._store.load(kind.value)
        if program is None:
            program = trace_bucket(self.text_model, kind, self._weights, self.empty, self.max_cache_len)
            self.traced += 1
            self._store.save(kind.value, program)
        return program


def _empty_cache(text_model: Any, max_cache_len: int) -> TracedCache:
    """One row of zeros: shapes and types are those of a cache after one token."""
    if text_model.config._attn_implementation not in ("sdpa", "eager"):
        raise UnsupportedError(
            f"attn_implementation: expected sdpa or eager, found {text_model.config._attn_implementation}: load the "
            'model with attn_implementation="sdpa"'
        )
    cache = StaticCache(config=text_model.config, max_cache_len=max_cache_len)
    name = "cache_params" if takes_cache_params(text_model) else "past_key_values"
    token = torch.ones(1, 1, dtype=torch.long, device=text_model.device)
    with torch.no_grad():
        try:
            text_model(token, use_cache=True, **{name: cache})
        except ValueError as cause:  # the model requires its own cache class
            raise UnsupportedError(
                f'engine="export" runs models that take a StaticCache, found {type(text_model).__name__}, which '
                f'refuses it ({str(cause).rstrip(".")}): use engine="onnxruntime"'
            ) from cause
    layers: list[dict[str, torch.Tensor]] = []
    for index, layer in enumerate(cache.layers):
        state = {key: torch.zeros_like(value) for key, value in layer_state(layer, max_cache_len).items()}
        if getattr(layer, "is_sliding", False) or {"keys", "conv"} <= state.keys():
            raise UnsupportedError(
                f'engine="export" holds layers of full attention or of recurrent states, found {type(layer).__name__} '
                f'in layer {index}: use engine="onnxruntime"'
            )
        layers.append(state)
    return TracedCache(layers)
