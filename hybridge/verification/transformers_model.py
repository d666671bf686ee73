"""A checkpoint in transformers, which computes in float32."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, EngineError, HybridgeError, described
from hybridge.artifact.json_fields import float_from_json
from hybridge.artifact.transient import is_torch_device_error
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from hybridge.requirements import require
from hybridge.verification.reference_rounding import rounded_outputs
from hybridge.verification.reference_routers import find_routers, given_router_inputs
from hybridge.verification.reference_weights import generating_model, stored_types, widen_in_turn
from hybridge.verification.rounded_inputs import Rounding
from hybridge.verification.rounded_products import (
    Apply,
    expert_part,
    experts_name,
    experts_of,
    parameters_of,
    round_products,
    tied_names,
    use_name,
)
from hybridge.verification.torch_functions import torch_functions

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
# transformers computes a Mamba2 layer in chunks of the config's size, whatever the prompt's length, with an array of
# chunk x chunk x heads x state_size numbers. The size changes nothing but the order of sums.
_CHUNK = 32


def _accept(_config: Any) -> None:
    """Any config will do."""


class TransformersModel:
    """The model of a checkpoint folder; never loads remote code nor pickled weights.

    ``check`` may refuse the config that transformers reads. CheckpointError where transformers cannot load the
    checkpoint, and from ``failures`` where it cannot run it. ``notes`` tell what differs from transformers. ``device``
    is where tokens belong. ``missing_keys``: names of parameters that the checkpoint does not hold.
    """

    def __init__(self, checkpoint: Path, check: Callable[[Any], None] = _accept, device: str = "cpu") -> None:
        require("torch", "transformers")
        import torch
        import transformers

        self.torch, self.device, self._ties_swapped = torch, device, False
        self._given: Mapping[str, Any] = {}
        self._replaced: dict[str, np.ndarray] = {}
        self._routers: Mapping[str, Any] = {}
        self._checkpoint = checkpoint
        self._library = f"transformers {transformers.__version__}"
        self.name = f"{self._library}, torch {torch.__version__}, float32"
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        stored = stored_types(checkpoint)
        with self.failures("load"):
            self._need_family()
            config = transformers.AutoConfig.from_pretrained(checkpoint, **_LOCAL)
            check(config)
            loaded: Any = generating_model(config, stored.wide).from_pretrained(
                checkpoint,
                dtype=getattr(torch, stored.main.value),
                use_safetensors=True,
                output_loading_info=True,
                **_LOCAL,
            )
        self.model, loading = loaded[0].eval(), loaded[1]
        self.missing_keys = frozenset[str](loading["missing_keys"])
        with self.failures("run"):
            self._use_plain_experts()
            self.notes = (
                *self._follow_time_step_limit(),
                *self._group_gated_norms(),
                *self._tie_head(self.missing_keys),
                *self._restore_router_biases(),
            )
            self._shorten_chunks()
            self._compute_decays()
            widen_in_turn(self.model, self.base.layers, device)
            self._widen_multipliers()

    def _need_family(self) -> None:
        """CheckpointError where transformers is too old for the checkpoint's family."""
        from transformers import CONFIG_MAPPING, PretrainedConfig

        model_type = PretrainedConfig.get_config_dict(self._checkpoint, **_LOCAL)[0].get("model_type")
        if isinstance(model_type, str) and model_type not in CONFIG_MAPPING:
            raise CheckpointError(
                f"{self._checkpoint}: expected a transformers that has {model_type}, to compare with, found "
                f"{self._library}: install a newer one, which may need a newer Python"
            )

    @property
    def base(self) -> Any:
        """The part with the layers."""
        if hasattr(self.model.base_model, "layers"):
            return self.model.base_model
        decoder = self.model.get_decoder()
        return decoder if hasattr(decoder, "layers") else decoder.base_model

    @contextlib.contextmanager
    def failures(self, what: str) -> Iterator[None]:
        """Turn any error of transformers in the block into a CheckpointError of one sentence; EngineError where memory
        is too small or a GPU fails.

        On the CPU transformers does not call kernels of installed packages.
        """
        try:
            with torch_functions() if self.device == "cpu" else contextlib.nullcontext():
                yield
        except (HybridgeError, MemoryError):
            raise
        except Exception as error:  # any type: a bad config value fails wherever it is first used
            if is_torch_device_error(error):
                raise EngineError(
                    f"{self._checkpoint}: {self._library} cannot {what} it ({described(error)}): free memory or check "
                    "the GPU"
                ) from error
            cause = " ".join(str(error).split()) or "no message"
            raise CheckpointError(
                f"{self._checkpoint}: {self._library} cannot {what} it ({type(error).__name__}: {cause}): there is "
                "nothing to compare with; correct the checkpoint"
            ) from error

    def round_inputs(self, roundings: Mapping[str, Rounding], inner_tie: float = 0.0) -> int:
        """Make products round their inputs by ``roundings``, by checkpoint module; returns the number that do.

        inner_tie: the relative error that inputs of experts' second products may have.
        """
        found, ties = parameters_of(self.model, roundings), tied_names(self.model)
        for parameter, modules in found.items():
            for use, name in enumerate(ties[id(self.model.get_parameter(parameter))]):
                self._round_product(name, use, modules, roundings, inner_tie)
        return sum(map(len, found.values()))

    def _round_product(
        self, parameter: str, use: int, modules: list[str], roundings: Mapping[str, Rounding], inner_tie: float
    ) -> None:
        """Round the inputs of products by ``parameter``, which has the weights of ``modules`` of the checkpoint.

        use: as in ``use_name``.
        """
        owner, _, last = parameter.rpartition(".")
        module, matrix = self.model.get_submodule(owner), self.model.get_parameter(parameter)
        if matrix.ndim == 3:
            tie = inner_tie if last.startswith("down") else 0.0
            experts = [
                replace(roundings[own].of_expert(number), tie=tie)
                for number, own in enumerate(experts_of(modules, len(matrix)))
            ]
            round_products(module, expert_part(matrix, [partial(self._rounded, each) for each in experts]))
            module.register_forward_pre_hook(partial(self._given_to_experts, use_name(experts_name(modules[0]), use)))
            return
        own = modules[0]
        apply = partial(self._rounded_input, use_name(own, use), roundings[own])
        if isinstance(module, self.torch.nn.Linear):
            module.register_forward_pre_hook(partial(_first_changed, apply))
            if not owner.endswith(".dt_proj"):
                return
            # Mamba1 multiplies by this matrix without calling the layer.
            module = self.model.get_submodule(owner.rpartition(".")[0])
        round_products(module, partial(_of_matrix, matrix, apply))

    @contextlib.contextmanager
    def ties_swapped(self) -> Iterator[None]:
        """Within the block, products round inputs almost halfway between two numbers to the other one."""
        self._ties_swapped = True
        try:
            yield
        finally:
            self._ties_swapped = False

    @property
    def has_routers(self) -> bool:
        """Whether ``find_routers`` found them."""
        return bool(self._routers)

    def rounded_outputs(self, dtype: DType | None) -> contextlib.AbstractContextManager[None]:
        """Within the block, products other than routers round their outputs to ``dtype``, if it is not None."""
        return rounded_outputs(self.model, tuple(self._routers.values()), dtype)

    def find_routers(self, names: Sequence[str], run: Callable[[], Any]) -> bool:
        """Call the routers of experts that ``run`` uses, in this order, ``names``; False if they are not as many."""
        weights = find_routers(self.model, run)
        if len(weights) == len(names):
            self._routers = dict(zip(names, weights, strict=True))
        return len(weights) == len(names)

    @contextlib.contextmanager
    def given_inputs(self, inputs: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, np.ndarray]]:
        """Within the block, modules and routers in ``inputs`` use these [T, features] instead of their own.

        Only the last of them where a product has fewer tokens. Yields what each would have used.
        """
        self._given, self._replaced = {name: self.torch.from_numpy(value) for name, value in inputs.items()}, {}
        try:
            with given_router_inputs(self._routers, inputs, self._replaced):
                yield self._replaced
        finally:
            self._given = {}

    def _rounded(self, rounding: Rounding, x: Any) -> Any:
        return rounding(x, self._ties_swapped)

    def _rounded_input(self, name: str, rounding: Rounding, x: Any) -> Any:
        # Zeros stand for what is in front of a sequence (zaya): the artifact's inputs are those of tokens.
        if name not in self._given or not x.any():
            return self._rounded(rounding, x)
        # The factors of a module are in the given inputs, as they are in the reference's weight.
        factors = 1.0 if rounding.factors is None else self.torch.from_numpy(rounding.factors)
        self._replaced[name] = (x * factors).flatten(0, -2).numpy()
        return rounding(self._given[name][-x.shape[-2] :].reshape(x.shape) / factors)

    def _given_to_experts(self, name: str, _module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs of a module of experts, of which the first [..., features] is what they multiply."""
        if name not in self._given or name in self._replaced:
            return inputs
        x = inputs[0]
        self._replaced[name] = x.flatten(0, -2).numpy()
        return (self._given[name][-self._replaced[name].shape[0] :].reshape(x.shape), *inputs[1:])

    def arguments(self, length: int, attends: bool, past: int = 0) -> dict[str, Any]:
        """Arguments that a hybrid model derives from its attention caches, where no layer ``attends``.

        length: of the new tokens, after ``past`` others. After these the positions are given too: some models count
        them in a layer without attention.
        """
        if not hasattr(self.model.config, "num_attention_heads"):
            return {}
        positions = self.torch.arange(past, past + length)[None]
        if attends:
            return {"position_ids": positions} if past else {}
        masks: Any = dict.fromkeys(("full_attention", "sliding_attention", "linear_attention", "conv"))
        if self.model.config.model_type == "recurrent_gemma":  # before 5.23 it takes a finished mask, not one by kind
            masks = self.torch.ones(1, 1, length, past + length, dtype=self.torch.bool)
        return {"position_ids": positions, "attention_mask": masks}

    def _use_plain_experts(self) -> None:
        """Run experts one by one: the grouped products that are the default refuse rows of some sizes."""
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")

    def _widen_multipliers(self) -> None:
        """Give multipliers that were loaded in the type of the weights (falcon_h1, gemma3) their float32 numbers."""
        embedding = self.model.get_input_embeddings()
        if hasattr(embedding, "scalar_embed_scale"):
            embedding.embed_scale = self.torch.tensor(embedding.scalar_embed_scale, device=self.device)
        if self.model.config.model_type == "falcon_h1":
            from transformers.models.falcon_h1.modeling_falcon_h1 import compute_mup_vector

            for layer in self.base.layers:
                rounded = layer.mamba.mup_vector
                layer.mamba.mup_vector = compute_mup_vector(self.model.config).to(rounded.device)

    def _shorten_chunks(self) -> None:
        for module in self.model.modules():
            if isinstance(getattr(module, "chunk_size", None), int) and hasattr(module, "ssm_state_size"):
                module.chunk_size = min(module.chunk_size, _CHUNK)

    def _compute_decays(self) -> None:
        """Compute constant decays (minimax) in float32: a checkpoint stores them in the type of its weights."""
        for module in self.model.modules():
            if hasattr(module, "get_slope_rate"):
                module.slope_rate = module.get_slope_rate().float()
                found = module.decay_factors(module.slope_rate)
                module.query_decay, module.key_decay, module.diagonal_decay = found

    def _tie_head(self, missing: Collection[str]) -> tuple[str, ...]:
        """Tie the head of a family that transformers never ties, where config asks for it and no head is stored."""
        head, embedding = self.model.get_output_embeddings(), self.model.get_input_embeddings()
        tied = getattr(self.model.config, "tie_word_embeddings", False) and "lm_head.weight" in missing
        if not tied or head.weight is embedding.weight:
            return ()
        head.weight = embedding.weight
        return ("transformers does not tie the output projection to the embedding here; the reference does",)

    def _restore_router_biases(self) -> tuple[str, ...]:
        """Give routers the biases of the checkpoint: loading sets the last one of each to -1 (zaya)."""
        biases = {name: b for name, b in self.model.named_buffers() if name.endswith(".balancing_biases")}
        tensors, changed = tensors_of(read_shards(self._checkpoint)) if biases else {}, 0
        for name in biases.keys() & tensors.keys():
            stored = self.torch.from_numpy(tensors[name].map().astype(np.float32))
            if not self.torch.equal(stored, biases[name].cpu()):
                biases[name].copy_(stored)
                changed += 1
        if not changed:
            return ()
        return (f"transformers changes the biases of {changed} routers when it loads them; the reference does not",)

    def _group_gated_norms(self) -> tuple[str, ...]:
        changed = group_gated_norms(self.model)
        if not changed:
            return ()
        return (f"this transformers normalises {changed} Mamba2 layers over all groups; the reference does not",)

    def _follow_time_step_limit(self) -> tuple[str, ...]:
        """Clamp dt at time_step_limit, as the papers and CUDA kernels do, where transformers has another bound."""
        raw = getattr(self.model.config, "time_step_limit", None)
        if raw is None:
            return ()
        low, high = (float_from_json(v) for v in raw)
        limit = (low or 0.0, math.inf if high is None else high)
        changed = 0
        for module in self.model.modules():
            if hasattr(module, "time_step_limit") and tuple(module.time_step_limit) != limit:
                module.time_step_limit = limit
                changed += 1
        if not changed:
            return ()
        return (
            f"transformers clamps dt at time_step_min in {changed} layers; the reference was set to the checkpoint's "
            f"time_step_limit [{limit[0]:g}, {limit[1]:g}], as in the Mamba2 paper and CUDA kernels",
        )


def group_gated_norms(model: Any) -> int:
    """Normalise each group of a Mamba2 layer separately, as its authors do; old versions of transformers do not.

    Returns the number of layers of ``model`` that were changed.
    """
    changed = 0
    for mixer in model.modules():
        norm: Any = getattr(mixer, "norm", None)
        groups = getattr(mixer, "n_groups", 1)
        joint = not any(hasattr(norm, name) for name in ("group_size", "n_groups"))
        if type(norm).__name__.endswith("RMSNormGated") and groups > 1 and joint:
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


def _first_changed(apply: Apply, _module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (apply(inputs[0]), *inputs[1:])


def _of_matrix(matrix: Any, apply: Apply, found: Any) -> Apply | None:
    return apply if found is matrix else None
