"""Reading a Hugging Face config.json: typed; every field is used, known to be harmless, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.json_fields import MISSING, Fields, float_from_json
from hybridge.artifact.limits import LAYERS

# Larger numbers are damage: tensors and ONNX shapes of such sizes do not exist.
LARGEST_SIZE = 2**31 - 1
# Fields of every transformers config that do not change what the model computes at inference.
HARMLESS_FIELDS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_model_name_or_path",
        "_name_or_path",
        "add_cross_attention",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cls_token_id",
        "cross_attention_hidden_size",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "length_penalty",
        "mask_token_id",
        "max_length",
        "min_length",
        "model_type",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_logits_to_keep",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "problem_type",
        "pruned_heads",
        "remove_invalid_values",
        "repetition_penalty",
        "rescale_prenorm_residual",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tie_encoder_decoder",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)


def finite(fields: Fields, name: str, positive: bool = False) -> float:
    """A finite number; above 0 if ``positive``."""
    value = float(fields.number(name))
    if not math.isfinite(value) or (positive and value <= 0):
        raise fields.fail(name, "a positive finite number" if positive else "a finite number")
    return value


class HfConfig(Fields):
    """The fields of a checkpoint's config.json, read by one family.

    ``first(names)`` serves fields that were renamed over time; ``expect`` refuses unsupported values by name;
    ``finish`` refuses fields that nothing has read.
    """

    def __init__(self, data: Mapping[str, Any], ignored: Iterable[str] = (), where: str = "config.json") -> None:
        super().__init__(data, where, CheckpointError)
        self._ignored = frozenset(ignored)

    def fill(self, absent: Mapping[str, Any]) -> None:
        """Let fields that the config lacks have the values of ``absent``, transformers' defaults of the family."""
        self._data = {**absent, **self._data}

    def replace(self, **values: Any) -> None:
        """Let the fields have these ``values``."""
        self._data = {**self._data, **values}

    def name_of(self, *names: str) -> str:
        """The first of ``names`` that the config holds; all of them count as read.

        CheckpointError when two of them hold different values.
        """
        self.ignore(*names)
        given = [name for name in names if name in self]
        for name in given[1:]:
            if self.raw(name) != self.raw(given[0]):
                raise self.fail(name, f"{self.raw(given[0])!r} like {given[0]}")
        return given[0] if given else names[0]

    def same(self, value: Any, source: str, *names: str) -> None:
        """Refuse another spelling of the field ``source`` that has a value other than ``value``."""
        for name in names:
            if self.raw(name, None) not in (None, value):
                raise self.fail(name, f"{value!r} like {source}")

    def _instead(self, name: str, default: Any, null: Any) -> Any:
        """The value of the field where it is absent or null; MISSING where the config gives one."""
        if name not in self:
            return default
        return null if self.raw(name) is None else MISSING

    def positive(self, *names: str, default: Any = MISSING, null: Any = MISSING) -> Any:
        """A positive integer under one of ``names``; ``default`` where absent, ``null`` where null, if given."""
        name = self.name_of(*names)
        if (value := self._instead(name, default, null)) is not MISSING:
            return value
        value = self.integer(name, minimum=1)
        if value > LARGEST_SIZE:
            raise self.fail(name, f"at most {LARGEST_SIZE}")
        return value

    def vocabulary(self, absent_padding: int | None = None) -> int:
        """``vocab_size`` of a family whose embedding has a row for ``pad_token_id``, which it must then have."""
        size: int = self.positive("vocab_size")
        padding = self.raw("pad_token_id", absent_padding)
        if padding is not None and not -size <= padding < size:
            raise self.fail("pad_token_id", f"null or a token id below vocab_size {size}")
        return size

    def layer_count(self) -> int:
        """The number of layers."""
        count = self.positive("num_hidden_layers")
        if count > LAYERS:
            raise self.fail("num_hidden_layers", f"at most {LAYERS}")
        return count

    def flag(self, *names: str, default: bool, null: Any = MISSING) -> bool:
        """A boolean under one of ``names``: ``default`` where absent, ``null`` where null, if that is given."""
        name = self.name_of(*names)
        value = self._instead(name, default, null)
        return bool(self.boolean(name) if value is MISSING else value)

    def scalar(self, *names: str, default: Any = MISSING, null: Any = MISSING, positive: bool = False) -> float:
        """A finite number under one of ``names``: ``default`` where absent, ``null`` where null, if given."""
        name = self.name_of(*names)
        value = self._instead(name, default, null)
        return finite(self, name, positive) if value is MISSING else float(value)

    def interval(self, *names: str, default: tuple[float, float]) -> tuple[float, float]:
        """A pair [low, high] with 0 <= low < high, infinities allowed; ``default`` where absent."""
        name = self.name_of(*names)
        if name not in self:
            return default
        value = self.raw(name)
        pair = [float_from_json(v) for v in value] if isinstance(value, list) else []
        if len(pair) != 2 or pair[0] is None or pair[1] is None or not 0 <= pair[0] < pair[1]:
            raise self.fail(name, "two numbers [low, high] with 0 <= low < high")
        return pair[0], pair[1]

    def numbers(self, name: str, count: int) -> tuple[float, ...] | None:
        """``count`` finite numbers; None where the field is absent or null."""
        value = self.raw(name, None)
        if value is None:
            return None
        found = [float_from_json(v) for v in value] if isinstance(value, list) else []
        if len(found) != count or any(v is None or not math.isfinite(v) for v in found):
            raise self.fail(name, f"a list of {count} numbers")
        return tuple(v for v in found if v is not None)

    def expect(self, name: str, supported: Iterable[Any], default: Any) -> Any:
        """The value of ``name``; UnsupportedError naming the supported values when it is none of them."""
        known = tuple(supported)
        value = self.raw(name, default)
        if not any(type(value) is type(k) and value == k for k in known):
            listed = " or ".join(repr(k) for k in known)
            raise UnsupportedError(f"{self._where}: {name}: expected {listed}, found {value!r}")
        return value

    def ignore(self, *names: str) -> None:
        """Mark fields as known and without influence on inference."""
        for name in names:
            self.raw(name, None)

    def finish(self) -> None:
        """Refuse fields that neither the family nor HARMLESS_FIELDS knows.

        Null and empty values are ignored. A 0 may be a factor or a first layer, and false may turn off something that
        is always done here.
        """
        unknown = [
            name
            for name in self.unread()
            if name not in HARMLESS_FIELDS and name not in self._ignored and self._data[name] not in (None, [], {})
        ]
        if unknown:
            raise UnsupportedError(
                f"{self._where}: unknown field(s) {', '.join(unknown)}: they may change what the model computes; "
                "if they do not, pass `ignore_config_fields=[...]` for each"
            )
