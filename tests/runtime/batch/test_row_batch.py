"""What a row batch asks of its engine, and what it refuses."""

import dataclasses

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.batch import RowBatch
from hybridge.runtime.batch.chunking import ALL_LOGITS_BYTES, STEP_TOKENS, chunk_length
from hybridge.runtime.engines.base import StepInputs
from tests.runtime.toy_engine import ToyEngine, toy_config, toy_logits


def test_a_long_prompt_is_fed_in_chunks_and_rows_drop_out_as_they_end() -> None:
    engine = ToyEngine(toy_config(), max_step_tokens=7)
    batch = RowBatch(engine, 2)
    long, short = batch.join(), batch.join()
    logits = batch.feed({long: list(range(20)), short: [5, 6]})
    assert engine.steps == [(2, 7), (2, 7), (2, 6)]
    np.testing.assert_array_equal(logits[long], toy_logits(engine.config, range(20)))
    np.testing.assert_array_equal(logits[short], toy_logits(engine.config, [5, 6]))


@pytest.mark.parametrize(("rows", "expected"), [(1, STEP_TOKENS), (3, STEP_TOKENS // 3 // 64 * 64), (1000, 64)])
def test_chunks_bound_the_tokens_of_a_step(rows: int, expected: int) -> None:
    engine = ToyEngine(toy_config(max_seq_len=100_000))
    assert chunk_length(engine, rows, 50_000) == expected
    assert chunk_length(engine, rows, 5) == 5


def test_chunks_bound_the_bytes_of_all_logits() -> None:
    config = toy_config(max_seq_len=100_000, all_logits=True)
    engine = ToyEngine(dataclasses.replace(config, vocab_size=200_000))
    assert 64 <= chunk_length(engine, 1, 50_000) <= ALL_LOGITS_BYTES / (4 * 200_000)


def test_a_full_batch_refuses_another_row() -> None:
    batch = RowBatch(ToyEngine(toy_config()), 1)
    batch.join()
    with pytest.raises(RequestError, match="expected a free row, found all 1 in use"):
        batch.join()


def test_a_finished_handle_is_gone() -> None:
    batch = RowBatch(ToyEngine(toy_config()), 2)
    handle = batch.join()
    batch.feed({handle: [1]})
    batch.decode({handle: 1})
    batch.finish(handle)
    with pytest.raises(KeyError):
        batch.feed({handle: [1]})
    with pytest.raises(KeyError):
        batch.decode({handle: 1})
    assert batch.join() != handle


def test_a_failed_step_leaves_the_token_counts_as_they_were() -> None:
    engine = ToyEngine(toy_config())
    batch = RowBatch(engine, 1)
    handle = batch.join()
    batch.feed({handle: [1, 2]})
    engine.fail_at_step = 2
    with pytest.raises(EngineError):
        batch.decode({handle: 3})
    assert batch.length(handle) == 2


def test_compaction_moves_rows_and_keeps_their_handles() -> None:
    engine = ToyEngine(toy_config())
    batch = RowBatch(engine, 4)
    prompts = {batch.join(): [10 * i + j for j in range(i + 1)] for i in range(4)}
    batch.feed(prompts)
    first, second, third, fourth = prompts
    batch.finish(first)
    batch.finish(third)
    batch.compact()
    assert (batch.rows, batch.free) == (2, 0)
    for handle, logits in batch.decode({fourth: 1, second: 2}):
        expected = [*prompts[handle], 1 if handle == fourth else 2]
        np.testing.assert_array_equal(logits, toy_logits(engine.config, expected))
    assert engine.steps[-1] == (2, 1)


def test_decoding_gives_pairs_in_the_order_of_the_rows() -> None:
    batch = RowBatch(ToyEngine(toy_config()), 3)
    first, second, third = (batch.join() for _ in range(3))
    batch.feed({first: [1], second: [2], third: [3]})
    batch.finish(first)
    newcomer = batch.join()
    batch.feed({newcomer: [4]})
    assert [handle for handle, _ in batch.decode({second: 5, newcomer: 6, third: 7})] == [newcomer, second, third]


def test_closing_gaps_puts_the_rows_in_use_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ToyEngine(toy_config(max_batch=5))
    batch = RowBatch(engine, 5)
    prompts = {batch.join(): [10 * i + j for j in range(i + 1)] for i in range(5)}
    batch.feed(prompts)
    first, second, third, fourth, fifth = prompts
    for handle in (second, first):
        batch.finish(handle)
    batch.close_gaps()
    seen: list[list[int]] = []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda i, states: (seen.append(i.context_lengths.tolist()), step(i, states))[1])
    for handle, logits in batch.decode({third: 1, fourth: 2, fifth: 3}):
        token = {third: 1, fourth: 2, fifth: 3}[handle]
        np.testing.assert_array_equal(logits, toy_logits(engine.config, [*prompts[handle], token]))
    assert seen == [[1, 1, 1, 0, 0]] and (batch.rows, batch.free) == (5, 2)
    assert batch.length(batch.join()) == 0


def test_a_finished_row_counts_no_tokens_in_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ToyEngine(toy_config())
    batch = RowBatch(engine, 2)
    long, short = batch.join(), batch.join()
    batch.feed({long: [1] * 9, short: [2]})
    batch.finish(long)
    seen: list[StepInputs] = []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda inputs, states: (seen.append(inputs), step(inputs, states))[1])
    batch.feed({short: [3, 4]})
    assert seen[0].past_lengths.tolist() == [0, 1] and seen[0].context_lengths.tolist() == [0, 2]
