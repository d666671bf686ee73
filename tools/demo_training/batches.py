"""Endless training batches; every epoch cuts and shuffles the text again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from demo_training.chat import conversation_from_document
from demo_training.errors import TrainingInputError
from demo_training.text import Document, passages_from_document


@dataclass(frozen=True)
class BatchPlan:
    """batch_size rows of seq_len tokens; conversations_per_passage sets the share of chat."""

    batch_size: int
    seq_len: int
    seed: int
    conversations_per_passage: float = 1.0
    min_passage_chars: int = 400
    max_passage_chars: int = 5000


def epoch_texts(documents: list[Document], plan: BatchPlan, epoch: int) -> tuple[list[str], list[str]]:
    """Passages that cover every document once, and conversations made from random places."""
    rng = Random(f"{plan.seed}/{epoch}")
    passages = [
        passage
        for document in documents
        for passage in passages_from_document(document, rng, plan.min_passage_chars, plan.max_passage_chars)
    ]
    sizes = [document.num_sentences for document in documents]
    wanted = int(len(passages) * plan.conversations_per_passage)
    picks = rng.choices(documents, weights=sizes, k=wanted)
    made = (conversation_from_document(document, rng) for document in picks)
    return passages, [conversation for conversation in made if conversation]


def epoch_tokens(documents: list[Document], tokenizer: Any, plan: BatchPlan, epoch: int) -> np.ndarray:
    """One epoch as a single shuffled int64 token stream."""
    passages, conversations = epoch_texts(documents, plan, epoch)
    core = tokenizer.backend_tokenizer
    eos = tokenizer.eos_token_id
    pieces = [[*encoding.ids, eos] for encoding in core.encode_batch(passages)]
    pieces += [encoding.ids for encoding in core.encode_batch(conversations, add_special_tokens=False)]
    Random(f"{plan.seed}/{epoch}/order").shuffle(pieces)
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])


def training_batches(documents: list[Document], tokenizer: Any, plan: BatchPlan) -> Iterator[np.ndarray]:
    """Yields int64 [batch_size, seq_len + 1] forever: inputs are [:, :-1], labels [:, 1:].

    The same documents and plan give the same batches. The next epoch is cut while this one is used.
    """
    row = plan.seq_len + 1
    rest = np.empty(0, dtype=np.int64)
    for fresh in _epochs(documents, tokenizer, plan):
        stream = np.concatenate([rest, fresh])
        if fresh.size < row:
            raise TrainingInputError(
                f"expected at least {row} tokens of text, found {fresh.size}; give more text or a lower --seq-len"
            )
        per_batch = row * plan.batch_size
        num_batches = stream.size // per_batch
        for index in range(num_batches):
            yield stream[index * per_batch : (index + 1) * per_batch].reshape(plan.batch_size, row)
        rest = stream[num_batches * per_batch :]


def _epochs(documents: list[Document], tokenizer: Any, plan: BatchPlan) -> Iterator[np.ndarray]:
    """The token streams of all epochs in their order, each made by a thread before it is asked for."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(epoch_tokens, documents, tokenizer, plan, 0)
        for epoch in itertools.count(1):
            current, following = following, pool.submit(epoch_tokens, documents, tokenizer, plan, epoch)
            yield current.result()
