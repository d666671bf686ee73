"""Runs of a paged artifact that must give the same result: alone, in chunks, in mixed steps, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.rollback.modes import AUTO
from hybridge.verification.lengths import parts_of
from hybridge.verification.long_windows import FILLED, LongWindowRow
from hybridge.verification.observation import NO_STATES, PAST_WINDOW, WINDOW_EDGE, InnerValues, Observation
from hybridge.verification.paged_sequences import PagedSequences

# Small and odd, so that rows end inside a block and window edges cross blocks.
BLOCK_SIZE = 5


def observations(
    engine: PagedEngine,
    prompts: list[np.ndarray],
    sequences: list[np.ndarray],
    steps: int,
    long_rows: Sequence[LongWindowRow],
    draft_tokens: int = 0,
    rollback: str = AUTO,
    products: Mapping[str, str] | None = None,
) -> Iterator[Observation]:
    """Every scenario; ``sequences`` are ``prompts`` with ``steps`` more tokens after each.

    ``draft_tokens``: of a row at most, in steps that check some, where the engine can take them back;
    ``rollback``: the mode. products: of ``InnerValues``, which are then shown in every scenario,
    not only for prompts alone.

    Blocks and slots are in random order, and free ones hold NaN.
    """
    inner = _inner(engine, products or {})
    yield from _alone(engine, prompts, inner)
    shown = None if products is None else inner
    yield from _chunked(engine, prompts, shown)
    at_once = max(1, engine.limits.max_rows)
    for start in range(0, len(prompts), at_once):
        mixed = _mixed(engine, sequences[start : start + at_once], steps, shown)
        yield from _renumbered(mixed, start)
        if 0 < draft_tokens < engine.max_rollback_tokens:
            heads = [len(prompt) for prompt in prompts[start : start + at_once]]
            engine.prepare_rollback(len(heads), 1 + draft_tokens, rollback)
            checked = _draft_tokens(engine, sequences[start : start + at_once], heads, 1 + draft_tokens, shown)
            yield from _renumbered(checked, start)
    for index, row in enumerate(long_rows):
        yield from long_window(engine, index, row, inner, products is not None)


def _inner(engine: PagedEngine, products: Mapping[str, str]) -> InnerValues | None:
    return InnerValues(engine.config.num_hidden_layers, products) if engine.shows_values else None


def long_window(
    engine: PagedEngine, index: int, row: LongWindowRow, inner: InnerValues | None, always: bool
) -> Iterator[Observation]:
    """The new tokens of ``row``, the ``index``-th, after its filled caches: most in one step, the last one by one.

    States are those of the new tokens only. always: show inner values of the last token too.
    """
    # Blocks of the first tokens, one of zeros, and those of the new tokens.
    size = engine.block_size(BLOCK_SIZE)
    tokens = FILLED + len(row.tokens) + 3 * size
    pools = PagedSequences(engine, 1, tokens, size, seed=index, inner=inner)
    handle, past = pools.add_filled(row.caches), row.caches.length
    for part in row.parts:
        scenario = WINDOW_EDGE if past == row.caches.length else PAST_WINDOW
        logits = _feed(engine, pools, {handle: part})[handle]
        past += len(part)
        row_states = pools.states(handle, len(row.tokens)) if past == row.caches.length + len(row.tokens) else {}
        yield pools.observed(scenario, index, handle, logits[-1], row_states)
        if not always:
            pools.stop_recording()


def untouched(engine: PagedEngine, prompt: np.ndarray) -> Iterator[tuple[str, int | None, bool]]:
    """(scenario, no layer, whether unchanged): states of other sequences in a step, and free blocks and slots."""
    pools = PagedSequences(engine, 2, 4 * len(prompt), engine.block_size(BLOCK_SIZE))
    first, second = pools.add(), pools.add()
    _feed(engine, pools, {first: prompt, second: prompt})
    before = pools.states(second)
    pools.step({first: prompt[:1]}, padding_rows=engine.limits.max_rows - 1)
    after = pools.states(second)
    yield "row without tokens", None, all(np.array_equal(before[name], after[name]) for name in before)
    yield "free blocks and slots", None, pools.untouched()


def _alone(engine: PagedEngine, prompts: list[np.ndarray], inner: InnerValues | None) -> Iterator[Observation]:
    for index, prompt in enumerate(prompts):
        size = engine.block_size(BLOCK_SIZE)
        pools = PagedSequences(engine, 1, len(prompt), size, seed=index, inner=inner)
        handle = pools.add()
        logits = _feed(engine, pools, {handle: prompt})[handle]
        yield pools.observed("one-shot prefill", index, handle, logits[-1])


def _chunked(engine: PagedEngine, prompts: list[np.ndarray], shown: InnerValues | None) -> Iterator[Observation]:
    for index, prompt in enumerate(prompts):
        if len(prompt) < 2:
            continue
        size = engine.block_size(BLOCK_SIZE)
        pools = PagedSequences(engine, 1, len(prompt), size, seed=index, inner=shown)
        handle = pools.add()
        for part in np.split(prompt, np.cumsum(parts_of(len(prompt)))[:-1]):
            logits = _feed(engine, pools, {handle: part})[handle]
        yield pools.observed("chunked prefill", index, handle, logits[-1])


def _mixed(
    engine: PagedEngine, sequences: list[np.ndarray], steps: int, shown: InnerValues | None
) -> Iterator[Observation]:
    """All prompts in one ragged step; then single tokens for every sequence.

    The first sequence starts late: its prompt shares a step with the first single tokens of the others.
    """
    total = sum(len(tokens) for tokens in sequences)
    pools = PagedSequences(engine, len(sequences), total, engine.block_size(BLOCK_SIZE), inner=shown)
    handles = [pools.add() for _ in sequences]
    heads = [len(tokens) - steps for tokens in sequences]
    late = {handles[0]: sequences[0][: heads[0]]} if len(handles) > 1 else {}
    early = {h: t[:n] for h, t, n in zip(handles, sequences, heads, strict=True) if h not in late}
    logits = _feed(engine, pools, early)
    for row, handle in enumerate(handles):
        if handle in early:
            yield pools.observed("ragged batch", row, handle, logits[handle][-1])
    for step in range(steps + bool(late)):
        fed = {h: step - bool(late and h in late) for h in handles}
        work = {
            h: sequences[row][heads[row] + fed[h] : heads[row] + fed[h] + 1] if fed[h] >= 0 else late[h]
            for row, h in enumerate(handles)
            if fed[h] < steps
        }
        logits = _feed(engine, pools, work)
        for row, handle in enumerate(handles):
            if handle in work:
                name = "decode" if fed[handle] >= 0 else "prefill beside decode"
                states = None if fed[handle] in (-1, steps - 1) else NO_STATES
                yield pools.observed(name, row, handle, logits[handle][-1], states)


def _draft_tokens(
    engine: PagedEngine, sequences: list[np.ndarray], heads: list[int], most: int, shown: InnerValues | None
) -> Iterator[Observation]:
    """All prompts in one step; then steps of up to ``most`` tokens, the first of which are right, for every sequence.

    heads: tokens of each prompt. A random number of tokens is right, and any number of wrong ones follows.
    """
    rng = np.random.default_rng(0)
    total = sum(len(tokens) + most for tokens in sequences)
    pools = PagedSequences(engine, len(sequences), total, engine.block_size(BLOCK_SIZE), inner=shown)
    by_handle = {pools.add(): tokens for tokens in sequences}
    lengths = dict(zip(by_handle, heads, strict=True))
    rows = {handle: row for row, handle in enumerate(by_handle)}
    _feed(engine, pools, {handle: tokens[: lengths[handle]] for handle, tokens in by_handle.items()})
    while work := {h: s[lengths[h] :][:most] for h, s in by_handle.items() if lengths[h] < len(s)}:
        accepted = {handle: int(rng.integers(1, len(tokens) + 1)) for handle, tokens in work.items()}
        drafts = {handle: _draft(tokens, accepted[handle], most, engine, rng) for handle, tokens in work.items()}
        for handle, logits in pools.check(drafts, accepted).items():
            for index in range(accepted[handle]):
                lengths[handle] += 1
                states = None if lengths[handle] == len(by_handle[handle]) else NO_STATES
                yield pools.observed("draft tokens", rows[handle], handle, logits[index], states, lengths[handle])


def _draft(right: np.ndarray, count: int, most: int, engine: PagedEngine, rng: np.random.Generator) -> np.ndarray:
    """The first ``count`` of ``right``, then random tokens up to a random length of at most ``most``."""
    wrong = rng.integers(0, engine.config.vocab_size, int(rng.integers(0, most - count + 1)))
    return np.concatenate([right[:count], wrong])


def _renumbered(observations: Iterator[Observation], start: int) -> Iterator[Observation]:
    for o in observations:
        yield replace(o, prompt=o.prompt + start)


def _feed(engine: PagedEngine, pools: PagedSequences, work: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Logits of all tokens of ``work``, fed in as few steps as the engine's limits allow."""
    rest, found = dict(work), {handle: [np.zeros((0, engine.config.vocab_size), np.float32)] for handle in work}
    while rest:
        room, now = engine.limits.max_tokens, {}
        for handle, tokens in list(rest.items())[: engine.limits.max_rows]:
            if room:
                now[handle], rest[handle] = tokens[:room], tokens[room:]
                room -= len(now[handle])
        for handle, logits in pools.step(now).items():
            found[handle].append(logits)
        rest = {handle: tokens for handle, tokens in rest.items() if len(tokens)}
    return {handle: np.concatenate(parts) for handle, parts in found.items()}
