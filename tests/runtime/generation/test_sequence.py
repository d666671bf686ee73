"""One sequence: text at the end of a generation, and what its sampler knows of the prompt."""

from dataclasses import replace

import numpy as np
import pytest

from hybridge.runtime.generation import GeneratedSequence, Piece, Request, RequestLimits
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.text import Tokenizer
from tests.runtime.text.tokenizer_files import byte_level_tokenizer

VOCAB = 500


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(byte_level_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def run(tokenizer: Tokenizer, tokens: list[int], params: SamplingParams) -> list[Piece]:
    """The pieces of a generation whose logits prefer each of ``tokens`` in turn, and that ends with them.

    As one piece it is the same.
    """
    request = Request.from_prompt([5], params, RequestLimits(VOCAB, 4096), tokenizer)
    sequence, whole = (
        GeneratedSequence(0, Request(request.prompt_ids, params, len(tokens)), (), tokenizer, 0.0) for _ in range(2)
    )
    pieces = []
    for token in tokens:
        logits = 10 * np.eye(1, VOCAB, token, dtype=np.float32)[0]
        pieces.append(sequence.accept(logits))
        whole.choose(logits)
        assert whole.finished == sequence.finished
        if sequence.finished:
            break
    # A stop string that only the flushed text completes is found when the last piece is made.
    one, last = whole.whole_piece(), pieces[-1].generation
    assert one.generation is not None and last is not None
    assert replace(one.generation, timings=last.timings) == last
    assert one.text == "".join(piece.text for piece in pieces) == last.text
    assert one.token_ids == last.token_ids
    return pieces


def test_an_incomplete_character_at_the_end_is_part_of_the_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("world𝄞", add_special_tokens=False)[:-1]
    pieces = run(tokenizer, tokens, SamplingParams())
    generation = pieces[-1].generation
    assert generation is not None and generation.finish_reason == "length"
    assert generation.text == tokenizer.decode(tokens) == "world\ufffd"
    assert "".join(piece.text for piece in pieces) == generation.text
    assert not any("\ufffd" in piece.text for piece in pieces[:-1])


def test_text_withheld_for_a_stop_string_is_returned_at_the_end(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("the world", add_special_tokens=False)
    pieces = run(tokenizer, tokens, SamplingParams(stop="ldly"))
    assert pieces[-1].generation is not None and pieces[-1].generation.text == "the world"
    assert pieces[-1].text.endswith("ld")


def test_a_stop_string_may_be_complete_only_at_the_end(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("world𝄞", add_special_tokens=False)[:-1]
    generation = run(tokenizer, tokens, SamplingParams(stop="d\ufffd"))[-1].generation
    assert generation is not None
    assert (generation.text, generation.finish_reason, generation.stopped_by) == ("worl", "stop", "d\ufffd")


def test_the_repetition_penalty_counts_the_prompt(tokenizer: Tokenizer) -> None:
    params = SamplingParams(repetition_penalty=2.0)
    sequence = GeneratedSequence(0, Request((7, 8), params, 3), (), tokenizer, 0.0)
    logits = np.zeros(VOCAB, np.float32)
    logits[[7, 9]] = [5.0, 4.0]
    assert sequence.accept(logits).token_ids == (9,)
