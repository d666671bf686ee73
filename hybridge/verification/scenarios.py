"""How an artifact may be driven to the same result: one shot, in chunks, ragged in a batch, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact import names
from hybridge.runtime.engines.base import Engine, StateSet, StepInputs
from hybridge.verification.far_windows import FarRow
from hybridge.verification.lengths import parts_of

# Scenarios of a row behind filled caches: the step that crosses the edge, and single tokens past it.
FAR_SCENARIOS = WINDOW_EDGE, PAST_WINDOW = "window edge", "decode past the window"


@dataclass(frozen=True)
class Observation:
    """What one row shows after ``length`` tokens of prompt ``prompt``: logits [vocab], its states, inner values.

    ``hidden`` [T, hidden] per layer and ``embeddings`` [T, hidden], empty and None where the engine was not asked.
    """

    scenario: str
    prompt: int
    length: int
    logits: np.ndarray
    states: dict[str, np.ndarray]
    hidden: tuple[np.ndarray, ...] = ()
    embeddings: np.ndarray | None = None


def one_shot(engine: Engine, prompts: list[np.ndarray]) -> Iterator[Observation]:
    """Each prompt alone in one prefill, with the hidden states of every layer where the engine shows them."""
    values = inner_values(engine.config.num_hidden_layers) if engine.shows_values else ()
    for index, prompt in enumerate(prompts):
        states = engine.allocate_states(1, len(prompt))
        logits, embeddings, hidden = _shown(engine, states, prompt, 0, values)
        held = read_row(states, 0, len(prompt))
        yield Observation("one-shot prefill", index, len(prompt), logits, held, hidden, embeddings)


def _shown(
    engine: Engine, states: StateSet, tokens: np.ndarray, past: int, values: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray | None, tuple[np.ndarray, ...]]:
    """Feed ``tokens`` behind ``past`` others; logits [vocab] of the last, embeddings and hidden states, where asked."""
    shown: list[dict[str, np.ndarray]] = []
    for start in range(0, len(tokens), engine.max_step_tokens):
        inputs = _inputs([tokens[start : start + engine.max_step_tokens]], [past + start])
        if values:
            outputs = engine.step_values(inputs, states, values)
            found = outputs[names.LOGITS]
            shown.append({name: outputs[name][0] for name in values})
        else:
            found = engine.step(inputs, states)
    logits = last_logits(found, [inputs.input_ids.shape[1]])[0].copy()
    whole = [np.concatenate([part[name] for part in shown]) for name in values]
    return logits, whole[0] if whole else None, tuple(whole[1:])


def inner_values(layers: int) -> tuple[str, ...]:
    """Names of the embeddings and of every layer's hidden states."""
    return (names.EMBEDDINGS_OUTPUT, *(names.layer_output(i) for i in range(layers)))


def chunked(engine: Engine, prompts: list[np.ndarray]) -> Iterator[Observation]:
    """Each prompt of at least two tokens in unequal chunks."""
    for index, prompt in enumerate(prompts):
        if len(prompt) < 2:
            continue
        states = engine.allocate_states(1, len(prompt))
        logits = _feed(engine, states, [prompt], parts_of(len(prompt)))[0]
        yield Observation("chunked prefill", index, len(prompt), logits, read_row(states, 0, len(prompt)))


def last_token_beside_prompt(engine: Engine, prompts: list[np.ndarray]) -> Iterator[Observation]:
    """The last token of the longest prompt in one step with the whole of it in another row.

    So the padding of the first row reaches beyond the end of its caches, where these have no room for another prompt.
    """
    index = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    prompt, head = prompts[index], len(prompts[index]) - 1
    if engine.max_batch_size < 2 or not 1 <= head < engine.max_step_tokens:
        return
    states = engine.allocate_states(2, len(prompt))
    engine.step(_inputs([prompt[:head], prompt[:0]], [0, 0]), states)
    logits = last_logits(engine.step(_inputs([prompt[head:], prompt], [head, 0]), states), [1, len(prompt)])
    for row in range(2):
        held = read_row(states, row, len(prompt))
        yield Observation("token beside prompt", index, len(prompt), logits[row].copy(), held)


def ragged_then_decode(engine: Engine, prompts: list[np.ndarray], steps: int) -> Iterator[Observation]:
    """All prompts in one ragged batch, then ``steps`` single tokens for every row.

    ``prompts`` hold the decode tokens at their end; the last ``steps`` tokens are fed one by one.
    """
    batch = len(prompts)
    states = engine.allocate_states(batch, max(len(p) for p in prompts))
    heads = [p[: len(p) - steps] for p in prompts]
    logits = _feed(engine, states, heads, [max(len(head) for head in heads)])
    for row in range(batch):
        length = len(heads[row])
        yield Observation("ragged batch", row, length, logits[row], read_row(states, row, length))
    for step in range(steps):
        tokens = [p[len(h) + step : len(h) + step + 1] for p, h in zip(prompts, heads, strict=True)]
        past = [len(h) + step for h in heads]
        found = last_logits(engine.step(_inputs(tokens, past), states), [1] * batch)
        for row in range(batch):
            full = read_row(states, row, past[row] + 1) if step == steps - 1 else {}
            yield Observation("decode", row, past[row] + 1, found[row].copy(), full)


def far_window(engine: Engine, index: int, row: FarRow) -> Iterator[Observation]:
    """The new tokens of ``row``, the ``index``-th, behind its filled caches: most in one step, the last one by one.

    States are those of the new tokens only.
    """
    past, end = row.caches.length, row.caches.length + len(row.tokens)
    states = engine.allocate_states(1, end)
    for name in row.caches.numbers:
        buffer = states.buffers[name]
        buffer.write_row(0, row.caches.first(name).astype(buffer.spec.dtype.numpy))
    values = inner_values(engine.config.num_hidden_layers) if engine.shows_values else ()
    for tokens in row.parts:
        at_once = past == row.caches.length
        logits, embeddings, hidden = _shown(engine, states, tokens, past, values if at_once else ())
        past += len(tokens)
        held = row.caches.numbers if past == end else ()
        new = {name: states.buffers[name].read_row(0, end)[:, -len(row.tokens) :].astype(np.float32) for name in held}
        scenario = WINDOW_EDGE if at_once else PAST_WINDOW
        yield Observation(scenario, index, past, logits, new, hidden, embeddings)


def empty_row(engine: Engine, prompt: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """States of a row before and after a step in which it takes no part (context length 0) beside an active row."""
    states = engine.allocate_states(2, 2 * len(prompt))
    engine.step(_inputs([prompt, prompt], [0, 0]), states)
    before = read_row(states, 1, 2 * len(prompt))
    engine.step(_inputs([prompt, prompt[:0]], [len(prompt), len(prompt)]), states)
    return before, read_row(states, 1, 2 * len(prompt))


def read_row(states: StateSet, row: int, length: int) -> dict[str, np.ndarray]:
    """All states of one row as float32, KV caches up to ``length`` positions."""
    return {
        name: buffer.read_row(row, length if "max_seq" in buffer.spec.shape else None).astype(np.float32)
        for name, buffer in states.buffers.items()
    }


def last_logits(logits: np.ndarray, lengths: list[int]) -> np.ndarray:
    """[batch, vocab] of each row's last valid token, from either form of the logits output."""
    if logits.ndim == 2:
        return logits
    return np.stack([logits[row, max(length - 1, 0)] for row, length in enumerate(lengths)])


def _feed(engine: Engine, states: StateSet, rows: list[np.ndarray], parts: Sequence[int]) -> list[np.ndarray]:
    """Feed the first tokens of every row, as many as ``parts`` says, then the next; logits [vocab] of each last token.

    A part of more tokens than the engine takes at once is fed in several; a row without tokens left takes no part.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    past, most = 0, engine.max_step_tokens
    for size in (min(most, part - done) for part in parts for done in range(0, part, most)):
        tokens = [row[past : past + size] for row in rows]
        inputs = _inputs(tokens, [min(past, len(row)) for row in rows])
        logits = last_logits(engine.step(inputs, states), [len(part) for part in tokens])
        found = [logits[row].copy() if len(tokens[row]) else last for row, last in enumerate(found)]
        past += size
    return found


def _inputs(rows: list[np.ndarray], past: list[int]) -> StepInputs:
    """Right-padded inputs for ``rows`` of new tokens."""
    ids = np.zeros((len(rows), max(1, max(len(r) for r in rows))), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return StepInputs(ids, np.array([len(r) for r in rows], np.int32), np.array(past, np.int32))
