"""Runs of a dense artifact that must give the same result: one shot, in chunks, in a ragged batch, token by token."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.verification.dense_rows import DenseRows, RowCopy, read_row, step_inputs
from hybridge.verification.lengths import parts_of
from hybridge.verification.long_windows import LongWindowRow
from hybridge.verification.observation import NO_STATES, PAST_WINDOW, WINDOW_EDGE, InnerValues, Observation


def observations(
    engine: DenseEngine,
    prompts: list[np.ndarray],
    sequences: list[np.ndarray],
    steps: int,
    long_rows: Sequence[LongWindowRow],
    products: Mapping[str, str] | None = None,
) -> Iterator[Observation]:
    """Every scenario; ``sequences`` are ``prompts`` with ``steps`` more tokens after each.

    products: of ``InnerValues``, which are then shown in every scenario, not only for prompts in one step.
    """
    inner = _inner(engine, products or {})
    yield from one_shot(engine, prompts, inner)
    shown = None if products is None else inner
    head = yield from chunked(engine, prompts, shown)
    if head is not None:
        yield from end_beside_prompt(engine, prompts, head, shown)
    at_once = engine.max_batch_size
    for start in range(0, len(prompts), at_once):
        yield from ragged_then_decode(engine, sequences[start : start + at_once], steps, start, head, shown)
    for index, row in enumerate(long_rows):
        yield from long_window(engine, index, row, inner, products is not None)


def untouched(engine: DenseEngine, prompt: np.ndarray) -> Iterator[tuple[str, int | None, bool]]:
    """(scenario, absolute layer, whether unchanged) of each state of an empty row in a batch with an active row."""
    if engine.max_batch_size < 2 or 2 * len(prompt) > engine.max_seq_len:
        return
    states = engine.allocate_states(2, 2 * len(prompt))
    engine.step(step_inputs([prompt, prompt], [0, 0]), states)
    before = read_row(states, 1, 2 * len(prompt))
    engine.step(step_inputs([prompt, prompt[:0]], [len(prompt), len(prompt)]), states)
    after = read_row(states, 1, 2 * len(prompt))
    for name, layer, _item in state_items(engine.config):
        yield "row without tokens", layer, bool(np.array_equal(before[name], after[name]))


def one_shot(engine: DenseEngine, prompts: list[np.ndarray], inner: InnerValues | None) -> Iterator[Observation]:
    """Each prompt alone in one prefill, with the hidden states of every layer where the engine returns them."""
    for index, prompt in enumerate(prompts):
        rows = DenseRows(engine, 1, len(prompt), inner)
        (logits,) = rows.feed([prompt], [0], [len(prompt)])
        yield rows.observed("one-shot prefill", index, 0, len(prompt), logits)


def _inner(engine: DenseEngine, products: Mapping[str, str]) -> InnerValues | None:
    return InnerValues(engine.config.num_hidden_layers, products) if engine.shows_values else None


@dataclass(frozen=True)
class Head:
    """The first ``length`` tokens of prompt ``prompt``, all but its last part, and a row after them."""

    prompt: int
    length: int
    row: RowCopy


def chunked(
    engine: DenseEngine, prompts: list[np.ndarray], shown: InnerValues | None
) -> Generator[Observation, None, Head | None]:
    """Each prompt of at least two tokens in unequal chunks; returns the head of the longest, None without any."""
    head = None
    for index, prompt in enumerate(prompts):
        if len(prompt) < 2:
            continue
        rows = DenseRows(engine, 1, len(prompt), shown)
        *first, last = parts_of(len(prompt))
        rows.feed([prompt], [0], first)
        if len(prompt) == max(len(p) for p in prompts):
            head = Head(index, sum(first), rows.copy(0, sum(first)))
        (logits,) = rows.feed([prompt], [sum(first)], [last])
        yield rows.observed("chunked prefill", index, 0, len(prompt), logits)
    return head


def end_beside_prompt(
    engine: DenseEngine, prompts: list[np.ndarray], head: Head, shown: InnerValues | None
) -> Iterator[Observation]:
    """The last part of a prompt in one step with the whole prompt in another row.

    So the padding of the first row reaches across chunks and beyond the end of its caches, where these have no room for
    another prompt.
    """
    prompt = prompts[head.prompt]
    if engine.max_batch_size < 2 or len(prompt) > engine.max_step_tokens:
        return
    rows = DenseRows(engine, 2, len(prompt), shown)
    rows.write(0, head.row)
    logits = rows.step([prompt[head.length :], prompt], [head.length, 0])
    for row in range(2):
        yield rows.observed("end beside prompt", head.prompt, row, len(prompt), logits[row].copy())


def ragged_then_decode(
    engine: DenseEngine,
    sequences: list[np.ndarray],
    steps: int,
    start: int,
    head: Head | None,
    shown: InnerValues | None,
) -> Iterator[Observation]:
    """Prompts in one ragged batch, then ``steps`` single tokens for every row.

    ``sequences`` are those from index ``start`` on, with the decode tokens at their end. Of the prompt of ``head``, the
    batch has the last part only: the others need not be padded to the length of the longest.
    """
    batch = len(sequences)
    rows = DenseRows(engine, batch, max(len(s) for s in sequences), shown)
    prompts, past = [s[: len(s) - steps] for s in sequences], [0] * batch
    if head is not None and start <= head.prompt < start + batch:
        rows.write(head.prompt - start, head.row)
        past[head.prompt - start] = head.length
    logits = rows.feed(prompts, past, [max(len(p) - done for p, done in zip(prompts, past, strict=True))])
    for row, prompt in enumerate(prompts):
        yield rows.observed("ragged batch", start + row, row, len(prompt), logits[row])
    for step in range(steps):
        past = [len(p) + step for p in prompts]
        tokens = [s[done : done + 1] for s, done in zip(sequences, past, strict=True)]
        found = rows.step(tokens, past)
        for row, done in enumerate(past):
            states = None if step == steps - 1 else NO_STATES
            yield rows.observed("decode", start + row, row, done + 1, found[row].copy(), states)


def long_window(
    engine: DenseEngine, index: int, row: LongWindowRow, inner: InnerValues | None, always: bool
) -> Iterator[Observation]:
    """The new tokens of ``row``, the ``index``-th, after its filled caches: most in one step, the last one by one.

    States are those of the new tokens only. always: show inner values of the last token too.
    """
    past, end = row.caches.length, row.caches.length + len(row.tokens)
    rows = DenseRows(engine, 1, end, inner)
    states = rows.states
    states.expect_few_tokens()
    for name in row.caches.numbers:
        buffer = states.buffers[name]
        buffer.write_row(0, row.caches.first(name).astype(buffer.spec.dtype.numpy))
    for tokens in row.parts:
        at_once = past == row.caches.length
        for start in range(0, len(tokens), engine.max_step_tokens):
            part = tokens[start : start + engine.max_step_tokens]
            (logits,) = rows.step([part], [past])
            past += len(part)
        cached = row.caches.numbers if past == end else ()
        new = {name: states.buffers[name].read_row(0, end)[:, -len(row.tokens) :].astype(np.float32) for name in cached}
        scenario = WINDOW_EDGE if at_once else PAST_WINDOW
        yield rows.observed(scenario, index, 0, past, logits.copy(), new)
        if not always:
            rows.stop_recording()


def state_items(config: RuntimeConfig) -> Iterator[tuple[str, int, str]]:
    """(graph input, absolute layer, item) of every state."""
    for k, (layer, kv) in enumerate(zip(config.attention_layer_indices, config.kv_layers, strict=True)):
        for name, item in zip(kv.state_names(k), ("key", "value"), strict=False):
            yield name, layer, item
    for r, layer in enumerate(config.recurrent_layer_indices):
        items = {names.conv_state(r): "conv_state", names.recurrent_state(r): "recurrent_state"}
        for name in config.recurrent_layers[r].state_names(r):
            yield name, layer, items[name]
