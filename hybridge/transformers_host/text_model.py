"""A module that replaces a text model: transformers calls it, a backend computes."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import ModelOutput

from hybridge.artifact.errors import RequestError
from hybridge.transformers_host.cache_bridge import cached_columns, cached_rows, fill_rows, restore_plain_layers
from hybridge.transformers_host.cache_layers import BackendCache, backend_cache
from hybridge.transformers_host.masks import tokens_from_mask
from hybridge.transformers_host.positions import check_positions
from hybridge.transformers_host.rows import TextBackend, TextRows

# Arguments of generate() that transformers also hands to the forward, which ignores them.
_OF_GENERATE = ("tokenizer", "assistant_tokenizer", "assistant_model", "streamer", "synced_gpus")
_SHOWN = ("output_hidden_states", "output_attentions", "output_router_logits")


class AcceleratedTextModel(nn.Module):
    """Takes the place of ``original`` and shares its parameters, submodules and attributes; only forward differs."""

    def __init__(self, original: nn.Module, backend: TextBackend) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.__dict__["backend"] = backend
        # The same dictionaries, so that state_dict, .to() and load_state_dict see what they saw before.
        self._modules, self._parameters, self._buffers = original._modules, original._parameters, original._buffers
        self.training = original.training
        parameters = inspect.signature(original.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"
        self._caches: weakref.WeakSet[Cache] = weakref.WeakSet()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["original"], name)

    # States outlive the call: made in inference mode they could not be updated outside of it.
    @torch.inference_mode(False)
    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: Any = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        cache_params: Cache | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As the original's: hidden states [rows, q, hidden] after the final norm, and the cache.

        RequestError, before anything is computed, for what a backend cannot do.
        """
        self._check(input_ids, inputs_embeds, kwargs)
        assert input_ids is not None
        cache = cache_params if self._cache_name == "cache_params" else past_key_values
        keep = self.config.use_cache if use_cache is None else use_cache
        if cache is None and keep:
            cache = DynamicCache(config=self.config)
        rows, tokens = self._rows(cache, attention_mask, input_ids)
        check_positions(position_ids, rows.columns, tokens, input_ids.shape[1])
        try:
            hidden = rows.step(input_ids, tokens)
        finally:
            if cache is None:
                rows.release()
        hidden = hidden.to(input_ids.device, self.dtype)
        output = self._output(hidden, cache if keep else None)
        return output.to_tuple() if return_dict is False else output

    def release_caches(self) -> None:
        """Give every cache that is still in use plain layers again."""
        for cache in list(self._caches):
            restore_plain_layers(cache)

    def _check(self, input_ids: torch.Tensor | None, embeds: torch.Tensor | None, kwargs: dict[str, Any]) -> None:
        if self.training:
            raise RequestError("an accelerated model cannot be trained: call model.eval(), or undo the acceleration")
        if input_ids is None or embeds is not None:
            raise RequestError(
                "expected input_ids alone, found inputs_embeds or neither: an accelerated model takes token ids"
            )
        for name in _SHOWN:
            if kwargs.pop(name, None) or getattr(self.config, name, False):
                raise RequestError(
                    f"{name}: expected False, found True: an accelerated model computes no inner values; undo the "
                    "acceleration for that call"
                )
        for name in _OF_GENERATE:
            kwargs.pop(name, None)
        unknown = sorted(name for name, value in kwargs.items() if value is not None and value is not False)
        if unknown:
            raise RequestError(
                f"expected no argument {unknown[0]}, found one: an accelerated model takes input_ids, attention_mask, "
                "position_ids and past_key_values"
            )

    def _rows(self, cache: Cache | None, mask: Any, input_ids: torch.Tensor) -> tuple[TextRows, np.ndarray | None]:
        """The rows behind ``cache`` (new ones for a plain cache), and which of the new tokens are not padding."""
        batch, new = input_ids.shape
        owner = None if cache is None else backend_cache(cache)
        if owner is not None:
            if mask is None and owner.rows.batch == batch:
                return owner.rows, None
            return owner.rows, self._new_tokens(owner.rows, mask, batch, new)
        if cache is not None and not cache.layers:
            cache.layers = DynamicCache(config=self.config).layers
        past = 0 if cache is None else cached_columns(cache)
        known = tokens_from_mask(mask, batch, past, new)
        longest = past + new if known is None else int(known.sum(axis=1).max())
        rows = self.backend.rows(batch, longest)
        if cache is not None:
            recording = any(getattr(layer, "record_past", False) for layer in cache.layers)
            if past:
                _check_rows(cached_rows(cache), batch)
                fill_rows(rows, cache, np.ones((batch, past), bool) if known is None else known[:, :past])
            BackendCache(rows, cache, self.backend.layer_types, self.backend.max_cache_len)
            self._caches.add(cache)
            if recording:
                rows.record()
        return rows, None if known is None else known[:, past:]

    def _new_tokens(self, rows: TextRows, mask: Any, batch: int, new: int) -> np.ndarray | None:
        _check_rows(rows.batch, batch)
        past = rows.columns.count
        if self._cache_name == "cache_params" and mask is not None and mask.shape[-1] == new:
            return tokens_from_mask(mask, batch, 0, new)
        known = tokens_from_mask(mask, batch, past, new)
        before = rows.columns.tokens if known is None else known[:, :past]
        if not np.array_equal(before, rows.columns.tokens) or (known is None and rows.columns.padded):
            raise RequestError(
                "attention_mask: expected unchanged padding of the cached tokens, found another: pass the whole "
                "mask, or start with an empty cache"
            )
        return None if known is None else known[:, past:]

    def _output(self, hidden: torch.Tensor, cache: Cache | None) -> ModelOutput:
        if self._cache_name == "past_key_values":
            return MoeModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache)
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Output

        return Mamba2Output(last_hidden_state=hidden, cache_params=cache)


def _check_rows(cached: int, found: int) -> None:
    if cached != found:
        raise RequestError(
            f"input_ids: expected {cached} rows as in the cache, found {found}: use a cache of this batch alone"
        )
