"""The text side of an artifact: tokenizer, chat template, recommended sampling, and prompts made into requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import RequestError, located
from hybridge.artifact.untrusted_file import has_file
from hybridge.runtime.generation import Request, RequestLimits
from hybridge.runtime.generation.checkpoint_defaults import eos_token_ids, read_generation_config, recommended_sampling
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.text import ChatTemplate, Tokenizer
from hybridge.runtime.text.prompt_size import tokens_within
from hybridge.runtime.text.special_tokens import read_tokenizer_config
from hybridge.runtime.text.tokenizer import TOKENIZER_FILE


class ModelText:
    """Contents of an artifact folder other than its graph. Without tokenizer.json, only token ids are accepted."""

    def __init__(self, folder: Path, config: RuntimeConfig) -> None:
        """ArtifactError when a file is malformed."""
        self._folder, self._config = folder, config
        self.tokenizer = Tokenizer.from_folder(folder) if has_file(folder, TOKENIZER_FILE) else None
        special = {} if self.tokenizer is None else self.tokenizer.special_tokens
        with located(folder):
            self.chat_template = ChatTemplate.from_folder(folder, read_tokenizer_config(folder), special)
            self._generation_config = read_generation_config(folder)
            self.eos_token_ids = self._eos()

    def close(self) -> None:
        """End the processes that run templates and tokenizers; calling it twice is allowed."""
        self.chat_template.close()
        if self.tokenizer is not None:
            self.tokenizer.close()

    @property
    def folder(self) -> Path:
        """The artifact's."""
        return self._folder

    @cached_property
    def recommended_sampling(self) -> SamplingParams:
        """The parameters of the checkpoint's generation_config.json."""
        with located(self._folder):
            return recommended_sampling(self._generation_config)

    def request(
        self, prompt: Any, params: SamplingParams, max_seq_len: int, name: str = "prompt", special_tokens: bool = True
    ) -> Request:
        """Check and tokenize ``prompt``; RequestError, which calls it ``name``, if it is bad."""
        limits = RequestLimits(self._config.vocab_size, max_seq_len)
        return Request.from_prompt(prompt, params, limits, self.tokenizer, name, special_tokens)

    def tokens(self, text: str, max_seq_len: int, name: str, special_tokens: bool) -> tuple[int, ...]:
        """The token ids of ``text``; RequestError, which calls it ``name``, without a tokenizer or if too long."""
        if self.tokenizer is None:
            raise RequestError(f"{name}: the artifact has no tokenizer.json: pass token ids instead of text")
        return tuple(tokens_within(self.tokenizer, text, max_seq_len, name, special_tokens))

    def prefix_request(self, prompt: Any, max_seq_len: int, name: str | None = None) -> Request:
        """The request that computes ``prompt``: text, token ids, or the first messages of conversations."""
        is_chat = isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)
        text: Any = self.chat_template.render(prompt, add_generation_prompt=False) if is_chat else prompt
        called = "prompt" if name is None else f"prefix {name!r}"
        return self.request(text, SamplingParams(max_new_tokens=1), max_seq_len, called, special_tokens=not is_chat)

    def _eos(self) -> tuple[int, ...]:
        """The artifact's EOS tokens and the generation config's; the tokenizer's own where neither names any."""
        declared = (*self._config.eos_token_ids, *eos_token_ids(self._generation_config))
        fallback = None if self.tokenizer is None or declared else self.tokenizer.eos_token_id
        return tuple(dict.fromkeys(declared if fallback is None else (fallback,)))
