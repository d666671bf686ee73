"""Text, chat, batch and measuring parts of the demo trainer."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from demo_training.batches import BatchPlan, training_batches
from demo_training.chat import SPECIAL_TOKENS, conversation_from_document, render
from demo_training.errors import TrainingInputError
from demo_training.evaluation import windows_from_text
from demo_training.families import FAMILIES, family_named
from demo_training.package_text import documents
from demo_training.text import document_from_text, documents_from_files, passages_from_document, title_from_stem
from demo_training.tokenizer import tokenizer_from_text
from demo_training.training import TrainingPlan, learning_rate_at

SENTENCES = [f"Sentence number {n} speaks of the whale, the king and the law." for n in range(40)]
TEXT = " ".join(SENTENCES)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_from_text([TEXT], vocab_size=300, max_length=64)


def test_sentences_are_found_and_cover_the_text() -> None:
    document = document_from_text("Numbers", f"  {TEXT}\n")
    assert document.num_sentences == len(SENTENCES)
    assert [document.sentences(n, n + 1) for n in range(40)] == SENTENCES
    assert document.sentences(38, 99) == " ".join(SENTENCES[38:])


def test_passages_cover_the_document_in_order() -> None:
    document = document_from_text("Numbers", TEXT)
    passages = passages_from_document(document, Random(1), min_chars=50, max_chars=400)
    assert len(passages) > 5
    assert " ".join(passages) == TEXT


def test_documents_are_separated_by_form_feeds(tmp_path: Path) -> None:
    path = tmp_path / "state-of-the-union.txt"
    path.write_text("One. Two.\n\f\nThree.\n\f\n \n", encoding="utf-8")
    documents = documents_from_files([path])
    assert [document.text for document in documents] == ["One. Two.", "Three."]
    assert documents[0].title == title_from_stem("state_of_the_union") == "State of the Union"


def test_unreadable_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(TrainingInputError, match="readable UTF-8"):
        documents_from_files([path])


def test_conversations_alternate_user_and_assistant() -> None:
    document = document_from_text("Numbers", TEXT)
    rng = Random(3)
    for _ in range(50):
        conversation = conversation_from_document(document, rng)
        assert conversation is not None
        questions, answers = conversation.count("<|user|>\n"), conversation.count("<|assistant|>\n")
        assert questions == answers in (1, 2)
        assert conversation.startswith("<s><|") and conversation.endswith("<|end|>\n")


def test_render_equals_the_chat_template(tokenizer: Any) -> None:
    pairs = [("system", "Be brief."), ("user", " Hi\n"), ("assistant", "Yes."), ("user", "Go on.")]
    messages = [{"role": role, "content": content} for role, content in pairs]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == render(pairs)


def test_special_tokens_come_first_in_the_vocabulary(tokenizer: Any) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))


def test_batches_repeat_for_a_seed_and_change_with_it(tokenizer: Any) -> None:
    documents = [document_from_text("Numbers", TEXT)]

    def tokens(seed: int) -> np.ndarray:
        plan = BatchPlan(batch_size=2, seq_len=31, seed=seed, min_passage_chars=50, max_passage_chars=300)
        batches = training_batches(documents, tokenizer, plan)
        return np.stack([next(batches) for _ in range(60)])

    first = tokens(0)
    assert first.shape == (60, 2, 32) and first.dtype == np.int64
    assert np.array_equal(first, tokens(0))
    assert not np.array_equal(first, tokens(1))


def test_too_little_text_for_one_row_is_refused(tokenizer: Any) -> None:
    batches = training_batches([document_from_text("One", "Too short.")], tokenizer, BatchPlan(1, 512, 0))
    with pytest.raises(TrainingInputError, match="lower --seq-len"):
        next(batches)


def test_held_out_windows_hold_consecutive_tokens_after_a_bos(tokenizer: Any) -> None:
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    windows = windows_from_text(tokenizer, TEXT, window=33)
    assert windows.shape == (len(ids) // 33, 34)
    assert (windows[:, 0] == tokenizer.bos_token_id).all()
    assert windows[:, 1:].flatten().tolist() == ids[: windows.shape[0] * 33]


def test_learning_rate_rises_then_falls() -> None:
    plan = TrainingPlan(steps=100, learning_rate=1.0, warmup_fraction=0.1)
    assert TrainingPlan(1, seconds=100.0).fitted(60, 20.0, 0.5) == TrainingPlan(220)
    rates = [learning_rate_at(plan, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.01


def test_an_unknown_family_is_refused_with_the_known_names() -> None:
    with pytest.raises(TrainingInputError, match=sorted(FAMILIES)[0]):
        family_named("gpt2")


def test_text_of_packages(tmp_path: Path) -> None:
    long = "A sentence of a docstring." * 20
    (tmp_path / "a.py").write_text(f'"""Module."""\n\n\ndef f():\n    """{long}"""\n')
    (tmp_path / "b.py").write_text(f'"""Module."""\n\n\ndef g():\n    """{long}"""\n')
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "short.py").write_text('"""Too short."""')
    assert list(documents(tmp_path, 10_000)) == [f"Module.\n\n{long}"]
