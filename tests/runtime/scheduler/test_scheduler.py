"""What the scheduler promises: order, fairness, chunks, preemption, refusals."""

import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.scheduler import (
    Priority,
    RepeatedPlan,
    ScheduledRequest,
    ScheduledSequence,
    SchedulerSettings,
    State,
)
from tests.runtime.scheduler.toy_server import ToyServer
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION
from tests.runtime.toy_paged_engine import paged_config, toy_greedy

MAX_SEQ = 96
ROOMY = PoolSizes(200, 4, 8)


def server(layers=HYBRID, sizes=ROOMY, window=None, **options) -> ToyServer:
    return ToyServer(paged_config(layers, MAX_SEQ, window=window), sizes, **options)


def request(length: int, new: int = 4, seed: int = 0, **fields) -> ScheduledRequest:
    return ScheduledRequest(tuple((seed + 3 * i) % 61 for i in range(length)), new, **fields)


def answer(toy: ToyServer, sequence: ScheduledSequence) -> None:
    prompt, new = sequence.request.prompt_ids, sequence.request.max_new_tokens
    assert sequence.tokens == [*prompt, *toy_greedy(toy.config, prompt, new)]


def rows(plan) -> dict[int, int]:
    return {row.sequence: row.new_tokens for row in plan.rows}


def test_chunks_of_a_prompt_share_steps_with_decoding():
    toy = server(max_tokens=8)
    short = toy.scheduler.add(request(2))
    toy.step()
    long = toy.scheduler.add(request(20))
    assert rows(toy.step()) == {short.id: 1, long.id: 7}
    assert rows(toy.step()) == {short.id: 1, long.id: 7}
    toy.run_all()
    answer(toy, short), answer(toy, long)


def test_a_short_prompt_does_not_wait_for_earlier_long_ones():
    toy = server(max_tokens=16)
    for seed in range(2):
        toy.scheduler.add(request(90, seed=seed))
    short = toy.scheduler.add(request(3))
    toy.step()
    assert len(short.tokens) == 4


def test_no_request_starves_under_a_stream_of_long_prompts():
    toy = server(max_tokens=8, max_rows=2, sizes=PoolSizes(40, 4, 2))
    first = toy.scheduler.add(request(30))
    victim = toy.scheduler.add(request(5))
    for step in range(60):
        toy.scheduler.add(request(60, seed=step))
        toy.step()
    assert first.state is victim.state is State.FINISHED
    answer(toy, victim)


def test_urgent_requests_go_first_and_take_the_place_of_others():
    toy = server(max_rows=1, policy=Priority())
    lazy = toy.scheduler.add(request(5, priority=1))
    toy.step()
    urgent = toy.scheduler.add(request(20, seed=1, priority=0))
    # All of the step's 16 tokens: no row is left for the other, whose token is the step's again.
    assert rows(toy.step()) == {urgent.id: 16}
    assert lazy.state is State.WAITING
    toy.run_all()
    answer(toy, lazy), answer(toy, urgent)
    assert (lazy.preemptions, urgent.preemptions) == (1, 0)


def test_a_prompt_leaves_tokens_to_an_urgent_request_without_a_row():
    toy = server(max_rows=1, policy=Priority())
    toy.scheduler.add(request(50, priority=1))
    toy.step()
    urgent = toy.scheduler.add(request(9, seed=1, priority=0))
    assert rows(toy.step()) == {urgent.id: 9}


def test_prompts_leave_no_tokens_to_requests_that_get_no_row():
    toy = server(max_tokens=16, max_rows=2)
    first, second, _ = (toy.scheduler.add(request(60, seed=seed)) for seed in range(3))
    for _ in range(2):
        assert rows(toy.step()) == {first.id: 8, second.id: 8}


def test_a_patient_request_is_overtaken_for_a_while_only():
    toy = server(max_rows=1, policy=Priority(patience=5))
    toy.scheduler.add(request(3, new=30, priority=0))
    lazy = toy.scheduler.add(request(3, new=2, priority=1))
    for step in range(80):
        if lazy.state is State.FINISHED:
            break
        toy.scheduler.add(request(3, new=4, seed=step, priority=0))
        toy.step()
    assert lazy.state is State.FINISHED


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION])
@pytest.mark.parametrize("swap_bytes", [0, 50, 10_000])
def test_preempted_sequences_resume_where_they_stopped(layers, swap_bytes):
    toy = server(layers, PoolSizes(24, 4, 3), swap_bytes=swap_bytes, max_rows=3)
    sequences = [toy.scheduler.add(request(20, new=40, seed=seed)) for seed in range(3)]
    plans = toy.run_all()
    assert sum(sequence.preemptions for sequence in sequences) > 0
    # 50 bytes hold no sequence.
    assert bool(sum(len(plan.swap_ins) for plan in plans)) == (swap_bytes > 50)
    assert sequences[0].preemptions == 0
    for sequence in sequences:
        answer(toy, sequence)


def test_a_host_that_is_full_means_computing_again():
    toy = server(sizes=PoolSizes(24, 4, 3), swap_bytes=10_000, max_rows=3)
    toy.engine.host_bytes_left = 0
    sequences = [toy.scheduler.add(request(20, new=40, seed=seed)) for seed in range(3)]
    assert not any(plan.swap_ins for plan in toy.run_all())
    for sequence in sequences:
        answer(toy, sequence)


def test_the_window_frees_blocks_as_it_moves():
    toy = server(PURE_ATTENTION, PoolSizes(7, 4, 0), window=6, max_tokens=8)
    sequence = toy.scheduler.add(request(60, new=30))
    toy.run_all()
    answer(toy, sequence)


def test_equal_prefixes_are_computed_once():
    toy = server(PURE_ATTENTION)
    first = toy.scheduler.add(request(30))
    toy.run_all()
    second = toy.scheduler.add(request(30, new=5))
    toy.run_all()
    assert (first.cached_tokens, second.cached_tokens) == (0, 28)
    answer(toy, second)


def test_new_requests_leave_the_watermark_to_running_ones():
    toy = server(sizes=PoolSizes(24, 4, 4), watermark=0.5)
    toy.scheduler.add(request(30, new=30))
    second = toy.scheduler.add(request(50))
    toy.step()
    assert second.state is State.WAITING
    toy.run_all()
    answer(toy, second)


def test_a_fork_shares_blocks_until_one_of_them_writes():
    toy = server(max_rows=3)
    parent = toy.scheduler.add(request(6, new=10))
    toy.poison()
    logits = toy.run(toy.scheduler.plan())[parent]
    used = toy.manager.pool.used
    child = toy.scheduler.fork(parent)
    assert (toy.manager.pool.used, toy.manager.slots.used) == (used, 2)
    best = logits.argsort()[::-1]
    toy.advance(parent, int(best[0])), toy.advance(child, int(best[1]))
    plan = toy.step()
    assert len(plan.block_copies) == 2 and len(plan.slot_copies) == 1
    assert toy.manager.pool.used == used + 1  # the full block stays shared
    toy.run_all()
    for sequence, first in ((parent, best[0]), (child, best[1])):
        start = [*sequence.request.prompt_ids, int(first)]
        assert sequence.tokens == [*start, *toy_greedy(toy.config, start, 9)]


def test_a_failed_step_ends_its_requests_only():
    toy = server(max_rows=2)
    died = toy.scheduler.add(request(5))
    toy.engine.fail_at = {1}
    plan = toy.scheduler.plan()
    lives = toy.scheduler.add(request(5, seed=2))
    with pytest.raises(EngineError, match="told to fail"):
        toy.executor.launch(plan)
    assert toy.scheduler.fail(plan) == [died]
    toy.scheduler.check_integrity()
    toy.run_all()
    answer(toy, lives)
    assert toy.manager.pool.used == 0


def test_a_request_that_never_fits_is_refused_at_once():
    toy = server()
    with pytest.raises(RequestError, match=r"at most 96 tokens .* found 97"):
        toy.scheduler.add(request(90, new=8))
    with pytest.raises(RequestError, match="the pools can hold"):
        toy.scheduler.add(request(90, new=4, sequences=9))
    assert not toy.scheduler.sequences


@pytest.mark.parametrize("sizes", [PoolSizes(23, 4, 1), PoolSizes(24, 4, 0)])
def test_pools_that_cannot_hold_one_sequence_are_refused(sizes):
    with pytest.raises(EngineError, match=f"at least 24 blocks and 1 slots.*found {sizes.num_blocks}"):
        server(sizes=sizes)


def test_the_budget_holds_all_rows_that_decode():
    with pytest.raises(EngineError, match="at least the 5 rows"):
        SchedulerSettings(max_tokens=4, max_rows=5, max_seq_len=9)


def test_draft_tokens_use_only_spare_blocks_and_tokens():
    """One block is free: the first sequence needs it for draft tokens, the second for its next token."""
    toy = ToyServer(paged_config(PURE_ATTENTION, 16), PoolSizes(4, 4, 0), max_tokens=16, max_rows=2)
    first, second = toy.scheduler.add(request(7, 9)), toy.scheduler.add(request(4, 5, seed=7))
    toy.step()
    plan = toy.scheduler.plan({first.id: (1, 2)})
    assert rows(plan) == {first.id: 1, second.id: 1} and not plan.rows[0].draft_tokens and second.state is State.RUNNING


def test_the_budget_limits_the_number_of_draft_tokens():
    toy = server(PURE_ATTENTION, max_tokens=9, max_rows=3)
    both = [toy.scheduler.add(request(2, 12, seed=seed)) for seed in (0, 30)]
    toy.step()
    assert rows(toy.scheduler.plan({each.id: (1, 2, 3, 4) for each in both})) == {both[0].id: 5, both[1].id: 4}


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION])
def test_steps_that_only_decode_repeat_with_new_blocks_until_a_queue_changes(layers):
    toy = server(layers, max_rows=2)
    first, second = (toy.scheduler.add(request(2, new=30, seed=seed)) for seed in range(2))
    toy.step()  # the prompts
    plans = [toy.step() for _ in range(6)]
    assert [plan.repeats for plan in plans] == [False, True, True, True, True, True]
    # Blocks have 4 tokens, of which 2 are the prompt's.
    new = [len(plan.new_blocks) for plan in plans if isinstance(plan, RepeatedPlan)]
    assert new == [0, 2, 0, 0, 0]
    for step, plan in enumerate(plans):
        assert [(row.sequence, row.start) for row in plan.rows] == [(first.id, 2 + step), (second.id, 2 + step)]
        assert all(row.samples and row.new_tokens == 1 for row in plan.rows) and plan.is_plain
    waits = toy.scheduler.add(request(2, seed=2))
    # A queue has changed, and then changes no more while there is no row for the third.
    assert not toy.step().repeats and toy.step().repeats
    toy.scheduler.finish(first)
    plan = toy.step()
    assert not plan.repeats and rows(plan) == {second.id: 1, waits.id: 2}
    toy.run_all()
    answer(toy, second), answer(toy, waits)


def test_a_sequence_that_ends_during_a_repeated_step_is_not_in_the_next():
    toy = server()
    first, second = (toy.scheduler.add(request(1, new=30, seed=seed)) for seed in range(2))
    toy.step(), toy.step()
    plan = toy.scheduler.plan()
    assert plan.repeats
    toy.scheduler.finish(first)
    toy.scheduler.finish(first)
    live = toy.run(plan)
    assert list(live) == [second] and first.state is State.FINISHED
    toy.advance(second, int(live[second].argmax()))
    assert rows(toy.step()) == {second.id: 1}


def test_a_repeated_step_that_fails_takes_its_sequences_with_it():
    toy = server()
    first = toy.scheduler.add(request(1, new=30))
    toy.step(), toy.step()
    plan = toy.scheduler.plan()
    assert plan.repeats and toy.scheduler.fail(plan) == [first]
    toy.scheduler.check_integrity()
    assert toy.scheduler.plan() is None and not toy.manager.pool.used


def test_a_step_without_rows_is_not_repeated():
    toy = server()
    first = toy.scheduler.add(request(3))
    toy.step()
    second = toy.scheduler.fork(first)
    toy.scheduler.finish(first), toy.scheduler.finish(second)
    plan = toy.step()
    assert not plan.rows and plan.slot_copies and toy.step() is None


def test_a_sequence_that_resumes_without_a_new_token_may_end_during_the_step():
    """As a beam does that waits for others."""
    toy = server(swap_bytes=10_000)
    sequence = toy.scheduler.add(request(5))
    toy.run(toy.scheduler.plan())
    assert not sequence.pending
    toy.scheduler._queues.preempt(sequence)
    plan = toy.scheduler.plan()
    assert plan is not None and not plan.rows
    toy.scheduler.finish(sequence)
    toy.scheduler.commit(plan)
    assert not toy.scheduler.sequences
    toy.scheduler.check_integrity()
