"""An LLM over the toy engine with a byte-level tokenizer of the same vocabulary size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.llm import LLM
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID, ToyEngine, toy_config, toy_greedy
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config

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


def paged_engine(folder: Path) -> ToyPagedEngine:
    """A paged toy engine for steps of up to 32 tokens and 8 rows; writes its tokenizer into ``folder``."""
    byte_level_tokenizer(folder)
    return ToyPagedEngine(paged_config(HYBRID, vocab=VOCAB, eos=(VOCAB - 1,)), max_tokens=32, max_rows=8)


def engine_of(llm: LLM) -> ToyEngine:
    """The toy engine of ``llm``."""
    assert isinstance(llm.engine, DenseAsPaged) and isinstance(llm.engine.dense, ToyEngine)
    return llm.engine.dense


def greedy(llm: LLM, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The greedy continuation, recomputed from scratch for each token, cut after the first EOS token."""
    tokens = toy_greedy(llm.config, prompt, count)
    ends = [i for i, token in enumerate(tokens) if token in llm.eos_token_ids]
    return tuple(tokens[: ends[0] + 1] if ends else tokens)
