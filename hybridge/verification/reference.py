"""The reference: transformers in float32 on the CPU; every run starts from empty states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.families.text_models import TEXT_MODELS
from hybridge.verification.cache_scales import CacheScale
from hybridge.verification.long_windows import FilledCaches
from hybridge.verification.reference_caches import (
    fill_layer,
    joined_latents,
    recurrent_states,
    round_state,
    update_rounded,
)
from hybridge.verification.reference_convolutions import ProjectedStates
from hybridge.verification.reference_rotary import exact_frequencies, use_long_factors
from hybridge.verification.reference_units import UnitStates
from hybridge.verification.transformers_model import TransformersModel

# Arguments with which models take, and attributes under which they return, a cache.
_CACHES = ("past_key_values", "cache_params")


@dataclass(frozen=True)
class ReferenceRun:
    """One sequence of T tokens through the reference.

    logits [t, vocab] of the last t tokens; embeddings [T, hidden], the first layer's input; hidden[i] [T, hidden] after
    layer i; states by graph input name, of one row, after all T tokens (KV caches [kv_heads, T, head_dim], of a window
    only its last). inputs [T, features] by module: those of products and routers, where the run was given others.
    """

    logits: np.ndarray
    embeddings: np.ndarray
    hidden: tuple[np.ndarray, ...]
    states: dict[str, np.ndarray]
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    def first(self, tokens: int) -> ReferenceRun | None:
        """The run of only the first ``tokens``, for a model whose only states are KV caches.

        None where a sliding window has dropped some of them.
        """
        total = len(self.embeddings)
        if any(cache.shape[1] < total for cache in self.states.values()):
            return None
        logits = self.logits[: max(0, tokens - total + len(self.logits))]
        states = {name: cache[:, :tokens] for name, cache in self.states.items()}
        return ReferenceRun(logits, self.embeddings[:tokens], tuple(h[:tokens] for h in self.hidden), states)


class Reference(TransformersModel):
    """The reference model of an artifact with ``config``; CheckpointError also for another checkpoint."""

    def __init__(self, checkpoint: Path, config: RuntimeConfig) -> None:
        super().__init__(checkpoint, lambda found: _check_pair(checkpoint, found, config))
        self._config, self._units = config, UnitStates(self.base.layers)
        self._convolutions = ProjectedStates(self.base.layers)
        self._cache_scales: Mapping[int, CacheScale] = {}
        use_long_factors(self.model, config.max_seq_len)

    def run(
        self,
        tokens: np.ndarray,
        filled: FilledCaches | None = None,
        last: int = 0,
        inputs: Sequence[np.ndarray] | None = None,
        products: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> ReferenceRun:
        """Process ``tokens`` [T] int64 in one call from empty states.

        last: return logits of this many last tokens; 0: of all.
        filled: the contents of the KV caches before the run, whose states are then those of ``tokens`` only.
        inputs: [T, hidden] of each layer and of the head, instead of what the module before it computes.
        products: [T, features] by module: what products round and routers read, instead of what the module before
        computes.
        """
        self._units.clear()
        exact = contextlib.nullcontext() if filled is None else exact_frequencies(self.model, self._config.max_seq_len)
        with exact:
            return self.call(tokens, self._cache(filled), 0, last, inputs, products)[0]

    def call(
        self,
        tokens: np.ndarray,
        cache: Mapping[str, Any] | None = None,
        past: int = 0,
        last: int = 0,
        inputs: Sequence[np.ndarray] | None = None,
        products: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> tuple[ReferenceRun, Mapping[str, Any]]:
        """One call of the model after ``past`` tokens, which are in ``cache``: its run, and its cache.

        cache: the argument with which the model takes it; None for an empty one. All else is as in ``run``.
        """
        torch, attends = self.torch, bool(self._config.attention_layer_indices)
        given = {**self.arguments(len(tokens), attends, past), **(self._cache(None) if cache is None else cache)}
        given |= {"use_cache": True, "return_dict": True, "logits_to_keep": last}
        with (
            self._hidden_states(inputs) as hidden,
            self.given_inputs(products) as replaced,
            self.failures("run"),
            torch.no_grad(),
        ):
            output = self.model(torch.from_numpy(tokens)[None], **given)
            after = _cache_of(output, given)
            states = self.states(after)
        run = ReferenceRun(output.logits[0].float().numpy(), hidden[0], tuple(hidden[1:]), states, replaced)
        return run, after

    def round_states(self, cache: Mapping[str, Any]) -> None:
        """Round the recurrent states in ``cache`` as the artifact stores them between two steps."""
        with self.failures("run"):
            by_name = {names.recurrent_state(r): index for r, index in enumerate(self._config.recurrent_layer_indices)}
            (found,) = cache.values()
            for own in self._config.state_scales:
                round_state(found, by_name[own.name], own)

    def use_routers(self, names: Sequence[str]) -> bool:
        """Call the routers of the model, in the order of layers, ``names``; False if they are not as many."""
        return self.find_routers(names, lambda: self.run(np.zeros(1, np.int64), last=1))

    @contextlib.contextmanager
    def _hidden_states(self, inputs: Sequence[np.ndarray] | None) -> Iterator[list[np.ndarray]]:
        """The embeddings and the output of each layer [T, hidden], as a run in the block computes them.

        inputs: what each layer and the head get instead.
        """
        layers, hidden = self.base.layers, list[np.ndarray]()
        given = None if inputs is None else [self.torch.from_numpy(value)[None] for value in inputs]

        def first(_module: Any, positional: Any, named: Any) -> Any:
            value = positional[0] if positional else named["hidden_states"]
            hidden.append(value[0].float().numpy())
            if given is None:
                return None
            if positional:
                return (given[0], *positional[1:]), named
            return positional, {**named, "hidden_states": given[0]}

        def record(_module: Any, _inputs: Any, output: Any) -> Any:
            hidden.append((output[0] if isinstance(output, tuple) else output)[0].float().numpy())
            if given is None:
                return None
            value = given[len(hidden) - 1]
            return (value, *output[1:]) if isinstance(output, tuple) else value

        hooks = [layers[0].register_forward_pre_hook(first, with_kwargs=True)]
        hooks += [layer.register_forward_hook(record) for layer in layers]
        try:
            yield hidden
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer in tokens, None where it has none, as transformers reads the config."""
        config = self.model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        # Without layer_types, all layers have the window (mistral).
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * self._config.num_hidden_layers
        return tuple(window if kind in ("sliding_attention", "hybrid_sliding") else None for kind in kinds)

    def _cache(self, filled: FilledCaches | None) -> dict[str, Any]:
        """A cache with the contents ``filled`` that rounds to e4m3 like the artifact; none if neither applies."""
        makes_one = self.model.config.model_type not in ("granite4_vision", "recurrent_gemma")
        if filled is None and not self._config.has_kv_scales and makes_one:
            return {}
        import transformers

        cache: Any = transformers.DynamicCache(config=self.model.config)
        for k, index in enumerate(self._config.attention_layer_indices):
            layer = cache.layers[index]
            if filled is not None:
                fill_layer(layer, filled, k, self._cache_scale(index))
            if self._config.has_kv_scales:
                own = self._config.kv_layers[k].head_dim, self._cache_scale(index)
                layer.update = partial(update_rounded, layer.update, *own)
        return {"past_key_values": cache}

    def scale_caches(self, scales: Mapping[int, CacheScale]) -> None:
        """Round keys and values of FP8 caches with ``scales``, by layer, and return states as pools hold them.

        Layers without any get those of a layer whose attention they share.
        """
        outputs = {i: self._output(i) for i in self._config.attention_layer_indices}
        shared = {outputs[i]: own for i, own in scales.items() if i in outputs}
        self._cache_scales = {i: scales.get(i, shared[output]) for i, output in outputs.items() if output in shared}

    def _output(self, layer: int) -> int:
        """Which output projection the attention of ``layer`` has: layers that share attention have one."""
        module = self.base.layers[layer]
        weights = (weight for name, weight in module.named_parameters() if name.endswith("o_proj.weight"))
        return id(next(weights, module))

    def _cache_scale(self, layer: int) -> CacheScale:
        return self._cache_scales.get(layer, CacheScale())

    def states(self, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The states of one row by graph input; ``given``: a cache, as ``call`` returns it."""
        cache: Any = next(iter(given.values()), None)
        states: dict[str, np.ndarray] = {}
        for k, index in enumerate(self._config.attention_layer_indices):
            layer = cache.layers[index]
            own = self._config.kv_layers[k]
            caches = joined_latents(layer.keys, layer.values, own.head_dim)[: own.parts]
            factors = self._cache_scale(index).in_pools[: own.parts]
            for name, numbers, factor in zip(own.state_names(k), caches, factors, strict=True):
                states[name] = numbers[0].numpy() / factor
        for r, index in enumerate(self._config.recurrent_layer_indices):
            layer = self._config.recurrent_layers[r]
            names_of, shapes = layer.state_names(r), layer.state_shapes
            if index in self._units:
                states |= zip(names_of, self._units.after(index, shapes), strict=True)
            elif index in self._convolutions:
                states |= zip(names_of, self._convolutions.after(index, shapes), strict=True)
            else:
                states |= recurrent_states(cache, index, names_of, shapes)
        return states


def _cache_of(output: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The cache that a model returns under one of two names, or the one that it was ``given`` and wrote to."""
    for name in _CACHES:
        cache = getattr(output, name, None)
        if cache is not None:
            return {name: cache}
    return {name: given[name] for name in _CACHES if name in given}


def _check_pair(checkpoint: Path, found: Any, artifact: RuntimeConfig) -> None:
    """CheckpointError when the artifact cannot have been exported from a checkpoint with the config ``found``."""
    text = found.get_text_config()
    whole = TEXT_MODELS.get(found.model_type)
    family = text.model_type if whole is None else whole.family
    pairs = [("model_type", artifact.model_type, {found.model_type, family})]
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        pairs.append((name, getattr(artifact, name), {getattr(text, name, getattr(artifact, name))}))
    for name, expected, known in pairs:
        if expected not in known:
            raise CheckpointError(
                f"{checkpoint}: expected the checkpoint of the artifact, with {name} {expected}, found {name} "
                f"{' or '.join(sorted(map(str, known)))}: verify with the checkpoint that was exported"
            )
