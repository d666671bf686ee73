"""The decoder module run eagerly on a checkpoint's own weights: what the exported graph means, without an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybridge.artifact.bindings import BATCH, MAX_SEQ
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.parameters import bind_parameters, derived_value
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.families.rope_length import at_length
from hybridge.exporter.families.stored_layout import as_stored
from hybridge.exporter.families.stored_rows import FORMS, experts_in_order
from hybridge.exporter.layers.decoder import Decoder
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.interface import runtime_config, sequence_limit
from hybridge.exporter.trace.tracing import TORCH_DTYPES
from hybridge.trt_plugins import torch_ops


@dataclass(frozen=True)
class StepResult:
    """One call: logits [batch, seq, vocab]; hidden[i] [batch, seq, hidden] after layer i; states by input name."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    states: dict[str, torch.Tensor]


class EagerDecoder:
    """``Decoder`` with every token's logits, in ``dtype``, its parameters bound from a checkpoint folder."""

    def __init__(self, folder: Path, dtype: DType = DType.FLOAT32) -> None:
        torch_ops.register()
        checkpoint = open_checkpoint(folder)
        decoder, options = decoder_config(checkpoint.config), ExportOptions(all_logits=True)
        decoder = as_stored(decoder, checkpoint.tensors)
        self.decoder_config: DecoderConfig = at_length(decoder, sequence_limit(decoder, options))
        self.config: RuntimeConfig = runtime_config(self.decoder_config, options, dtype, checkpoint.eos_token_ids)
        self.module = _module(self.decoder_config, TORCH_DTYPES[dtype])
        declared = dict(self.module.named_parameters())
        for p in bind_parameters(self.decoder_config, checkpoint.tensors):
            if p.derived in FORMS:
                slot = checkpoint.tensors[p.sources[0]]
                value = np.stack(list(experts_in_order(p.derived, slot))).astype(np.float32)
            elif p.derived:
                value = derived_value(p, self.decoder_config, checkpoint.tensors)
            else:
                stored = [checkpoint.tensors[source].map().astype(np.float32) for source in p.sources]
                value = np.concatenate(stored).reshape(p.shape)
            with torch.no_grad():
                declared.pop(p.name).copy_(torch.from_numpy(np.array(value)))
        assert not declared, f"parameters that nothing filled: {sorted(declared)}"

    def zero_states(self, batch: int, max_seq: int) -> dict[str, torch.Tensor]:
        """Fresh states; KV caches hold ``max_seq`` positions."""
        axes = {BATCH: batch, MAX_SEQ: max_seq}
        return {
            b.name: torch.zeros(b.resolve(**axes), dtype=TORCH_DTYPES[b.dtype]) for b in self.config.bindings.states
        }

    def step(
        self, rows: list[np.ndarray], past: list[int], states: dict[str, torch.Tensor], padding: int = 0
    ) -> StepResult:
        """Feed ``rows`` of new tokens, right-padded with random tokens from the seed ``padding``."""
        width = max(1, max(len(r) for r in rows))
        ids = np.random.default_rng(padding).integers(0, self.config.vocab_size, (len(rows), width))
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        hidden: list[torch.Tensor] = []

        def record(_module: Any, _inputs: Any, output: Any) -> None:
            hidden.append(output[0])

        hooks = [layer.register_forward_hook(record) for layer in self.module.layers]
        try:
            with torch.no_grad():
                logits, new_states = self.module(
                    torch.from_numpy(ids),
                    torch.tensor([len(r) for r in rows], dtype=torch.int32),
                    torch.tensor(past, dtype=torch.int32),
                    list(states.values()),
                )
        finally:
            for hook in hooks:
                hook.remove()
        return StepResult(logits, tuple(hidden), dict(zip(states, new_states, strict=True)))


def _module(config: DecoderConfig, dtype: torch.dtype) -> Decoder:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return Decoder(config, all_logits=True).eval()
    finally:
        torch.set_default_dtype(before)
