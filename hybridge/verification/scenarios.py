"""Runs of a dense artifact that must give the same result: one shot, in chunks, in a ragged batch, token by token."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs
from hybridge.verification.far_windows import FarRow
from hybridge.verification.lengths import parts_of

# Scenarios of a row with filled caches: the step that crosses the edge, and single tokens past it.
FAR_SCENARIOS = WINDOW_EDGE, PAST_WINDOW = "window edge", "decode past the window"


@dataclass(frozen=True)
class Observation:
    """Results of one row after ``length`` tokens of prompt ``prompt``: logits [vocab], states, hidden states.

    ``hidden`` [T, hidden] per layer and ``embeddings`` [T, hidden], empty and None where not requested.
    """

    scenario: str
    prompt: int
    length: int
    logits: np.ndarray
    states: dict[str, np.ndarray]
    hidden: tuple[np.ndarray, ...] = ()
    embeddings: np.ndarray | None = None


def observations(
    engine: DenseEngine, prompts: list[np.ndarray], sequences: list[np.ndarray], steps: int, far: Sequence[FarRow]
) -> Iterator[Observation]:
    """Every scenario; ``sequences`` are ``prompts`` with ``steps`` more tokens after each."""
    yield from one_shot(engine, prompts)
    head = yield from chunked(engine, prompts)
    if head is not None:
        yield from end_beside_prompt(engine, prompts, head)
    at_once = engine.max_batch_size
    for start in range(0, len(prompts), at_once):
        yield from ragged_then_decode(engine, sequences[start : start + at_once], steps, start, head)
    for index, row in enumerate(far):
        yield from far_window(engine, index, row)


def untouched(engine: DenseEngine, prompt: np.ndarray) -> Iterator[tuple[str, int | None, bool]]:
    """(scenario, absolute layer, whether unchanged) of each state of an empty row in a batch with an active row."""
    if engine.max_batch_size < 2 or 2 * len(prompt) > engine.max_seq_len:
        return
    states = engine.allocate_states(2, 2 * len(prompt))
    engine.step(_inputs([prompt, prompt], [0, 0]), states)
    before = read_row(states, 1, 2 * len(prompt))
    engine.step(_inputs([prompt, prompt[:0]], [len(prompt), len(prompt)]), states)
    after = read_row(states, 1, 2 * len(prompt))
    for name, layer, _item in state_items(engine.config):
        yield "row without tokens", layer, bool(np.array_equal(before[name], after[name]))


def one_shot(engine: DenseEngine, prompts: list[np.ndarray]) -> Iterator[Observation]:
    """Each prompt alone in one prefill, with the hidden states of every layer where the engine shows them."""
    values = inner_values(engine.config.num_hidden_layers) if engine.shows_values else ()
    for index, prompt in enumerate(prompts):
        states = engine.allocate_states(1, len(prompt))
        logits, embeddings, hidden = _shown(engine, states, prompt, 0, values)
        row_states = read_row(states, 0, len(prompt))
        yield Observation("one-shot prefill", index, len(prompt), logits, row_states, hidden, embeddings)


def _shown(
    engine: DenseEngine, states: StateSet, tokens: np.ndarray, past: int, values: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray | None, tuple[np.ndarray, ...]]:
    """Feed ``tokens`` after ``past`` others; logits [vocab] of the last, embeddings and hidden states on request."""
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


@dataclass(frozen=True)
class Head:
    """The first ``length`` tokens of prompt ``prompt``, all but its last part, and the row's states after them."""

    prompt: int
    length: int
    states: dict[str, np.ndarray]

    def write(self, states: StateSet, row: int) -> None:
        """Set the states of ``row`` to those after these tokens."""
        for name, value in self.states.items():
            states.buffers[name].write_row(row, value)


def chunked(engine: DenseEngine, prompts: list[np.ndarray]) -> Generator[Observation, None, Head | None]:
    """Each prompt of at least two tokens in unequal chunks; returns the head of the longest, None without any."""
    head = None
    for index, prompt in enumerate(prompts):
        if len(prompt) < 2:
            continue
        states = engine.allocate_states(1, len(prompt))
        *first, last = parts_of(len(prompt))
        _feed(engine, states, [prompt], [0], first)
        if len(prompt) == max(len(p) for p in prompts):
            head = Head(index, sum(first), _row(states, 0, sum(first)))
        logits = _feed(engine, states, [prompt], [sum(first)], [last])[0]
        yield Observation("chunked prefill", index, len(prompt), logits, read_row(states, 0, len(prompt)))
    return head


def end_beside_prompt(engine: DenseEngine, prompts: list[np.ndarray], head: Head) -> Iterator[Observation]:
    """The last part of a prompt in one step with the whole prompt in another row.

    So the padding of the first row reaches across chunks and beyond the end of its caches, where these have no room for
    another prompt.
    """
    prompt = prompts[head.prompt]
    if engine.max_batch_size < 2 or len(prompt) > engine.max_step_tokens:
        return
    states = engine.allocate_states(2, len(prompt))
    head.write(states, 0)
    end = prompt[head.length :]
    logits = last_logits(engine.step(_inputs([end, prompt], [head.length, 0]), states), [len(end), len(prompt)])
    for row in range(2):
        row_states = read_row(states, row, len(prompt))
        yield Observation("end beside prompt", head.prompt, len(prompt), logits[row].copy(), row_states)


def ragged_then_decode(
    engine: DenseEngine, sequences: list[np.ndarray], steps: int, start: int, head: Head | None
) -> Iterator[Observation]:
    """Prompts in one ragged batch, then ``steps`` single tokens for every row.

    ``sequences`` are those from index ``start`` on, with the decode tokens at their end. Of the prompt of ``head``, the
    batch has the last part only: the others need not be padded to the length of the longest.
    """
    batch = len(sequences)
    states = engine.allocate_states(batch, max(len(s) for s in sequences))
    prompts, past = [s[: len(s) - steps] for s in sequences], [0] * batch
    if head is not None and start <= head.prompt < start + batch:
        head.write(states, head.prompt - start)
        past[head.prompt - start] = head.length
    logits = _feed(engine, states, prompts, past, [max(len(p) - done for p, done in zip(prompts, past, strict=True))])
    for row, prompt in enumerate(prompts):
        row_states = read_row(states, row, len(prompt))
        yield Observation("ragged batch", start + row, len(prompt), logits[row], row_states)
    for step in range(steps):
        past = [len(p) + step for p in prompts]
        tokens = [s[done : done + 1] for s, done in zip(sequences, past, strict=True)]
        found = last_logits(engine.step(_inputs(tokens, past), states), [1] * batch)
        for row, done in enumerate(past):
            full = read_row(states, row, done + 1) if step == steps - 1 else {}
            yield Observation("decode", start + row, done + 1, found[row].copy(), full)


def far_window(engine: DenseEngine, index: int, row: FarRow) -> Iterator[Observation]:
    """The new tokens of ``row``, the ``index``-th, after its filled caches: most in one step, the last one by one.

    States are those of the new tokens only.
    """
    past, end = row.caches.length, row.caches.length + len(row.tokens)
    states = engine.allocate_states(1, end)
    states.expect_few_tokens()
    for name in row.caches.numbers:
        buffer = states.buffers[name]
        buffer.write_row(0, row.caches.first(name).astype(buffer.spec.dtype.numpy))
    values = inner_values(engine.config.num_hidden_layers) if engine.shows_values else ()
    for tokens in row.parts:
        at_once = past == row.caches.length
        logits, embeddings, hidden = _shown(engine, states, tokens, past, values if at_once else ())
        past += len(tokens)
        names = row.caches.numbers if past == end else ()
        new = {name: states.buffers[name].read_row(0, end)[:, -len(row.tokens) :].astype(np.float32) for name in names}
        scenario = WINDOW_EDGE if at_once else PAST_WINDOW
        yield Observation(scenario, index, past, logits, new, hidden, embeddings)


def state_items(config: RuntimeConfig) -> Iterator[tuple[str, int, str]]:
    """(graph input, absolute layer, item) of every state."""
    for k, layer in enumerate(config.attention_layer_indices):
        yield names.past_key(k), layer, "key"
        yield names.past_value(k), layer, "value"
    for r, layer in enumerate(config.recurrent_layer_indices):
        items = ("conv_state", "recurrent_state")
        for name, item in zip(config.recurrent_layers[r].state_names(r), items, strict=False):
            yield name, layer, item


def read_row(states: StateSet, row: int, length: int) -> dict[str, np.ndarray]:
    """All states of one row as float32, KV caches up to ``length`` positions."""
    return {name: value.astype(np.float32) for name, value in _row(states, row, length).items()}


def _row(states: StateSet, row: int, length: int) -> dict[str, np.ndarray]:
    return {
        name: buffer.read_row(row, length if "max_seq" in buffer.spec.shape else None)
        for name, buffer in states.buffers.items()
    }


def last_logits(logits: np.ndarray, lengths: list[int]) -> np.ndarray:
    """[batch, vocab] of each row's last valid token, from either form of the logits output."""
    if logits.ndim == 2:
        return logits
    return np.stack([logits[row, max(length - 1, 0)] for row, length in enumerate(lengths)])


def _feed(
    engine: DenseEngine, states: StateSet, rows: list[np.ndarray], past: list[int], parts: Sequence[int]
) -> list[np.ndarray]:
    """Feed each row its tokens after ``past`` in parts of lengths ``parts``; logits [vocab] of each last token.

    A part that is too long for one step of the engine is split; a row without tokens left has length 0.
    """
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    most = engine.max_step_tokens
    for size in (min(most, part - done) for part in parts for done in range(0, part, most)):
        tokens = [row[done : done + size] for row, done in zip(rows, past, strict=True)]
        logits = last_logits(engine.step(_inputs(tokens, past), states), [len(part) for part in tokens])
        found = [logits[row].copy() if len(tokens[row]) else last for row, last in enumerate(found)]
        past = [done + len(part) for done, part in zip(past, tokens, strict=True)]
    return found


def _inputs(rows: list[np.ndarray], past: list[int]) -> StepInputs:
    """Right-padded inputs for ``rows`` of new tokens."""
    ids = np.zeros((len(rows), max(1, max(len(r) for r in rows))), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return StepInputs(ids, np.array([len(r) for r in rows], np.int32), np.array(past, np.int32))
