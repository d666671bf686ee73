"""The reference: transformers in float32 on the CPU; every run starts from empty states."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import CheckpointError, HybridgeError
from hybridge.artifact.json_fields import float_from_json
from hybridge.requirements import require
from hybridge.verification.far_windows import FilledCaches
from hybridge.verification.reference_caches import fill_layer
from hybridge.verification.reference_rotary import exact_frequencies
from hybridge.verification.reference_weights import causal_lm, stored_types, widen_in_turn


@dataclass(frozen=True)
class ReferenceRun:
    """One sequence of T tokens through the reference.

    logits [t, vocab] of the last t tokens; embeddings [T, hidden], the first layer's input; hidden[i] [T, hidden] after
    layer i; states by graph input name, of one row, after all T tokens (KV caches [kv_heads, T, head_dim], of a window
    only its last).
    """

    logits: np.ndarray
    embeddings: np.ndarray
    hidden: tuple[np.ndarray, ...]
    states: dict[str, np.ndarray]

    def first(self, tokens: int) -> ReferenceRun | None:
        """The run of the first ``tokens`` alone, for a model whose only states are KV caches.

        None where a sliding window has dropped some of them.
        """
        total = len(self.embeddings)
        if any(cache.shape[1] < total for cache in self.states.values()):
            return None
        logits = self.logits[: max(0, tokens - total + len(self.logits))]
        states = {name: cache[:, :tokens] for name, cache in self.states.items()}
        return ReferenceRun(logits, self.embeddings[:tokens], tuple(h[:tokens] for h in self.hidden), states)


_LOCAL = {"local_files_only": True, "trust_remote_code": False}
# transformers computes a Mamba2 layer in chunks of the config's size, whatever the prompt's length, with an array of
# chunk x chunk x heads x state_size numbers. The size changes nothing but the order of sums.
_CHUNK = 32


class Reference:
    """A transformers model of the checkpoint; never loads remote code nor pickled weights.

    CheckpointError, now and in ``run``, where transformers cannot load or run the checkpoint.
    """

    def __init__(self, checkpoint: Path, config: RuntimeConfig) -> None:
        require("torch", "transformers")
        import torch
        import transformers

        self._torch = torch
        self._config, self._checkpoint = config, checkpoint
        self._library = f"transformers {transformers.__version__}"
        self.name = f"{self._library}, torch {torch.__version__}, float32"
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        stored = stored_types(checkpoint)
        with self._failures("load"):
            _check_pair(checkpoint, transformers.AutoConfig.from_pretrained(checkpoint, **_LOCAL), config)
            loaded: Any = causal_lm(stored.wide).from_pretrained(
                checkpoint,
                dtype=getattr(torch, stored.main.value),
                use_safetensors=True,
                output_loading_info=True,
                **_LOCAL,
            )
        self._model, loading = loaded[0].eval(), loaded[1]
        with self._failures("run"):
            self._use_plain_experts()
            self.notes = (
                *self._follow_time_step_limit(),
                *self._group_gated_norms(),
                *self._tie_head(loading["missing_keys"]),
            )
            self._shorten_chunks()
            widen_in_turn(self._model, self._base().layers)

    def run(self, tokens: np.ndarray, filled: FilledCaches | None = None, last: int = 0) -> ReferenceRun:
        """Process ``tokens`` [T] int64 in one call from empty states.

        last: the logits are those of this many last tokens; 0: of all.
        filled: the contents of the KV caches before the run, whose states are then those of ``tokens`` only.
        """
        torch, layers = self._torch, self._base().layers
        hidden: list[np.ndarray] = []

        def record_input(_module: Any, inputs: Any, named: Any) -> None:
            hidden.append((inputs[0] if inputs else named["hidden_states"])[0].float().numpy())

        def record(_module: Any, _inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            hidden.append(value[0].float().numpy())

        hooks = [layers[0].register_forward_pre_hook(record_input, with_kwargs=True)]
        hooks += [layer.register_forward_hook(record) for layer in layers]
        try:
            exact = contextlib.nullcontext() if filled is None else exact_frequencies(self._model)
            with self._failures("run"), torch.no_grad(), exact:
                given = {**self._arguments(len(tokens)), **self._cache(filled)}
                given |= {"use_cache": True, "return_dict": True, "logits_to_keep": last}
                output = self._model(torch.from_numpy(tokens)[None], **given)
                cache = getattr(output, "past_key_values", None)
                states = self._states(output.cache_params if cache is None else cache)
        finally:
            for hook in hooks:
                hook.remove()
        return ReferenceRun(output.logits[0].float().numpy(), hidden[0], tuple(hidden[1:]), states)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer in tokens, None where it has none, as transformers reads the config."""
        config = self._model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or [None] * self._config.num_hidden_layers
        return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turn any error of transformers in the block into a CheckpointError of one sentence."""
        try:
            yield
        except (HybridgeError, MemoryError):
            raise
        except Exception as error:  # any type: a bad config value fails wherever it is first used
            cause = " ".join(str(error).split()) or "no message"
            raise CheckpointError(
                f"{self._checkpoint}: {self._library} cannot {what} it ({type(error).__name__}: {cause}): there is "
                "nothing to compare with, correct the checkpoint"
            ) from error

    def _arguments(self, length: int) -> dict[str, Any]:
        """Arguments that a hybrid model derives from its attention caches, for one without attention layers."""
        if self._config.attention_layer_indices or not hasattr(self._model.config, "num_attention_heads"):
            return {}
        masks = {"full_attention": None, "linear_attention": None}
        return {"position_ids": self._torch.arange(length)[None], "attention_mask": masks}

    def _cache(self, filled: FilledCaches | None) -> dict[str, Any]:
        """A cache that holds ``filled``, and rounds to e4m3 where the artifact does; without either, none."""
        if filled is None and not self._config.has_kv_scales:
            return {}
        import transformers

        cache: Any = transformers.DynamicCache(config=self._model.config)
        for k, index in enumerate(self._config.attention_layer_indices):
            layer = cache.layers[index]
            if filled is not None:
                fill_layer(layer, filled, k)
            if self._config.has_kv_scales:
                layer.update = partial(_update_rounded, layer.update)
        return {"past_key_values": cache}

    def _base(self) -> Any:
        return self._model.base_model if hasattr(self._model.base_model, "layers") else self._model.get_decoder()

    def _states(self, cache: Any) -> dict[str, np.ndarray]:
        states: dict[str, np.ndarray] = {}
        for k, index in enumerate(self._config.attention_layer_indices):
            layer = cache.layers[index]
            states[names.past_key(k)] = layer.keys[0].numpy()
            states[names.past_value(k)] = layer.values[0].numpy()
        for r, index in enumerate(self._config.recurrent_layer_indices):
            layer = cache.layers[index]
            states[names.conv_state(r)] = layer.conv_states[0][0].numpy()
            states[names.recurrent_state(r)] = layer.recurrent_states[0][0].numpy()
        return states

    def _use_plain_experts(self) -> None:
        """Run experts one by one: the grouped products that are the default refuse rows of some sizes."""
        if hasattr(self._model, "set_experts_implementation"):
            self._model.set_experts_implementation("eager")

    def _shorten_chunks(self) -> None:
        for module in self._model.modules():
            if isinstance(getattr(module, "chunk_size", None), int) and hasattr(module, "ssm_state_size"):
                module.chunk_size = min(module.chunk_size, _CHUNK)

    def _tie_head(self, missing: Collection[str]) -> tuple[str, ...]:
        """Tie the head of a family that transformers never ties, where config asks for it and no head is stored."""
        head, embedding = self._model.get_output_embeddings(), self._model.get_input_embeddings()
        tied = getattr(self._model.config, "tie_word_embeddings", False) and "lm_head.weight" in missing
        if not tied or head.weight is embedding.weight:
            return ()
        head.weight = embedding.weight
        return ("transformers does not tie the output projection to the embedding here; the reference does",)

    def _group_gated_norms(self) -> tuple[str, ...]:
        changed = group_gated_norms(self._model)
        if not changed:
            return ()
        return (f"this transformers normalises {changed} Mamba2 layers over all groups; the reference does not",)

    def _follow_time_step_limit(self) -> tuple[str, ...]:
        """Clamp dt at time_step_limit, as the papers and CUDA kernels do, where transformers has another bound."""
        raw = getattr(self._model.config, "time_step_limit", None)
        if raw is None:
            return ()
        low, high = (float_from_json(v) for v in raw)
        limit = (low or 0.0, math.inf if high is None else high)
        changed = 0
        for module in self._model.modules():
            if hasattr(module, "time_step_limit") and tuple(module.time_step_limit) != limit:
                module.time_step_limit = limit
                changed += 1
        if not changed:
            return ()
        return (
            f"transformers clamps dt at time_step_min in {changed} layers; the reference was set to the checkpoint's "
            f"time_step_limit [{limit[0]:g}, {limit[1]:g}], as in the Mamba2 paper and CUDA kernels",
        )


def _update_rounded(update: Any, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:
    """``update`` of a cache's layer with keys and values [batch, kv_heads, tokens, head_dim] rounded to e4m3."""
    from hybridge.trt_plugins.reference.e4m3 import e4m3_from, exact_from_e4m3

    return update(*(exact_from_e4m3(*e4m3_from(x)).to(x.dtype) for x in (keys, values)), *rest, **more)


def group_gated_norms(model: Any) -> int:
    """Normalise each group of a Mamba2 layer separately, as its authors do; old versions of transformers do not.

    Returns the number of layers of ``model`` that were changed.
    """
    changed = 0
    for mixer in model.modules():
        norm: Any = getattr(mixer, "norm", None)
        groups = getattr(mixer, "n_groups", 1)
        if type(norm).__name__.endswith("RMSNormGated") and groups > 1 and not hasattr(norm, "group_size"):
            norm.forward = partial(_grouped_gated_norm, norm, groups)
            changed += 1
    return changed


def _grouped_gated_norm(norm: Any, groups: int, hidden_states: Any, gate: Any = None) -> Any:
    """RMS norm of silu(gate) * hidden_states [..., size] within each of ``groups`` equal parts of the last axis."""
    values = hidden_states.float()
    if gate is not None:
        values = values * gate.float() * gate.float().sigmoid()
    parts = values.unflatten(-1, (groups, -1))
    scaled = parts * (parts.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    return norm.weight * scaled.flatten(-2).to(hidden_states.dtype)


def _check_pair(checkpoint: Path, found: Any, artifact: RuntimeConfig) -> None:
    """CheckpointError when the artifact cannot have been exported from a checkpoint with the config ``found``."""
    text = found.get_text_config()
    pairs = [("model_type", artifact.model_type, {found.model_type, text.model_type})]
    for name in ("hidden_size", "num_hidden_layers", "vocab_size"):
        pairs.append((name, getattr(artifact, name), {getattr(text, name, getattr(artifact, name))}))
    for name, expected, known in pairs:
        if expected not in known:
            raise CheckpointError(
                f"{checkpoint}: expected the checkpoint of the artifact, with {name} {expected}, found {name} "
                f"{' or '.join(sorted(map(str, known)))}: verify with the checkpoint that was exported"
            )
