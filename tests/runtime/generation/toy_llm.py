"""An LLM over the toy engine with a byte-level tokenizer of the same vocabulary size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.llm import LLM
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID, ToyEngine, toy_config, toy_greedy

VOCAB = 404


def toy_llm(
    folder: Path,
    layers: Sequence[str] = HYBRID,
    max_seq_len: int = 96,
    max_batch: int = 4,
    eos: tuple[int, ...] = (),
    all_logits: bool = False,
    max_step_tokens: int | None = None,
) -> LLM:
    """Writes the tokenizer into ``folder`` if it is not there."""
    if not (folder / "tokenizer.json").exists():
        byte_level_tokenizer(folder)
    # No token of the toy model's own ends a generation unless ``eos`` says so.
    config = toy_config(layers, max_seq_len, max_batch, VOCAB, eos or (VOCAB - 1,), all_logits)
    return LLM(folder, engine=ToyEngine(config, max_step_tokens))


def engine_of(llm: LLM) -> ToyEngine:
    """The toy engine of ``llm``."""
    assert isinstance(llm.engine, DenseAsPaged) and isinstance(llm.engine.dense, ToyEngine)
    return llm.engine.dense


def greedy(llm: LLM, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The greedy continuation, recomputed from scratch for each token, cut after the first EOS token."""
    tokens = toy_greedy(llm.config, prompt, count)
    ends = [i for i, token in enumerate(tokens) if token in llm.eos_token_ids]
    return tuple(tokens[: ends[0] + 1] if ends else tokens)
