"""Masks of several answers are computed together, and are those of each alone."""

from __future__ import annotations

import string

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from hybridge.artifact.errors import RequestError
from hybridge.serve.grammar_tokens import GrammarTokens, MaskBatch

# A byte-level vocabulary of single characters, and an EOS token.
LETTERS = string.ascii_lowercase
VOCAB, EOS = 40, 39


class Letters:
    """What llguidance needs of a tokenizer."""

    eos_token_id, bos_token_id = EOS, None
    tokens = [letter.encode() for letter in LETTERS] + [b""] * (VOCAB - len(LETTERS))
    special_token_ids = (EOS,)

    def __call__(self, text: bytes) -> list[int]:
        return [LETTERS.index(chr(byte)) for byte in text]


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    from llguidance import TokenizerWrapper  # type: ignore[attr-defined]

    return LLTokenizer(TokenizerWrapper(Letters()), n_vocab=VOCAB)


def matcher(tokenizer: LLTokenizer, regex: str) -> LLMatcher:
    return LLMatcher(tokenizer, LLMatcher.grammar_from_regex(regex), log_level=0)


def allowed(tokens: GrammarTokens) -> str:
    """The letters that may come next, and "$" for the end."""
    mask = tokens.mask()
    found = [token for token in range(VOCAB) if mask.view(np.uint32)[token // 32] >> (token % 32) & 1]
    return "".join("$" if token == EOS else LETTERS[token] for token in found)


def test_answers_in_different_states_get_their_own_masks(tokenizer: LLTokenizer) -> None:
    batch = MaskBatch(VOCAB)
    stops = frozenset({EOS})
    regexes = {"ab*c": "", "(dog|cat)": "", "x{3}": ""}
    answers = {regex: GrammarTokens(matcher(tokenizer, regex), stops, batch) for regex in regexes}
    GrammarTokens(matcher(tokenizer, "left"), stops, batch)  # an answer that ended before its first mask
    assert [allowed(answer) for answer in answers.values()] == ["a", "cd", "x"]
    for answer, letter in zip(answers.values(), "acx", strict=True):
        answer.accept(LETTERS.index(letter))
    assert [allowed(answer) for answer in answers.values()] == ["bc", "a", "x"]
    first, second, third = answers.values()
    first.accept(LETTERS.index("b"))
    third.accept(LETTERS.index("x"))
    third.accept(LETTERS.index("x"))  # without a mask in between
    assert [allowed(answer) for answer in (third, first, second)] == ["$", "bc", "a"]
    third.accept(EOS)
    second.accept(LETTERS.index("z"))
    with pytest.raises(RequestError, match="grammar"):
        second.mask()
    assert allowed(first) == "bc"


def test_an_error_in_another_thread_is_that_of_each_mask_that_it_would_have_computed(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the second call for a mask, as of a step that could not be made ready before."""

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    batch = MaskBatch(VOCAB)
    answers = [GrammarTokens(matcher(tokenizer, "ab*"), frozenset({EOS}), batch) for _ in range(2)]
    monkeypatch.setattr(batch, "_arrangement", fail)
    batch.begin()
    monkeypatch.undo()
    other = GrammarTokens(matcher(tokenizer, "x"), frozenset({EOS}), batch)
    for answer in answers * 2:
        with pytest.raises(MemoryError, match="no room"):
            answer.mask()
    assert allowed(other) == "x"
    batch.close()


def test_masks_that_another_thread_computes_are_the_same(tokenizer: LLTokenizer) -> None:
    batch, alone = MaskBatch(VOCAB), MaskBatch(VOCAB)
    regexes = ["(ab)*c", "x{40}", "a(b|cd)*e"]
    prepared = [GrammarTokens(matcher(tokenizer, regex), frozenset({EOS}), batch) for regex in regexes]
    expected = [GrammarTokens(matcher(tokenizer, regex), frozenset({EOS}), alone) for regex in regexes]
    for step in range(4):
        assert not any(each.coming() is not None for each in prepared)
        for each in prepared:
            each.prepare()  # all but the first have nothing to do
        coming = [each.coming() for each in prepared]
        assert all(each.mask() is mask for each, mask in zip(prepared, coming, strict=True))
        forks = [each.fork() for each in prepared]
        assert [allowed(each) for each in (*prepared, *forks)] == [allowed(each) for each in expected] * 2
        for each, other, letters in zip(prepared, expected, ["abab", "xxxx", "abcd"], strict=True):
            each.accept(LETTERS.index(letters[step]))
            other.accept(LETTERS.index(letters[step]))
    prepared[0].prepare()
    prepared[0].accept(LETTERS.index("c"))  # while its mask is computed
    batch.close()
    prepared[0].prepare()
    assert allowed(prepared[0]) == "$"


def test_an_error_in_the_other_thread_is_raised_with_the_mask(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = MaskBatch(tokenizer.vocab_size)
    tokens = GrammarTokens(matcher(tokenizer, "ab"), frozenset(), batch)
    monkeypatch.delattr("llguidance.numpy.consume_token_par")
    tokens.prepare()
    with pytest.raises(ImportError, match="consume_token_par"):
        tokens.mask()
    batch.close()
