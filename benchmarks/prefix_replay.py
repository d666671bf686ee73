"""Replay a trace on a serving loop, on the clock of the machine or of an engine that models the time of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from benchmarks.model_free_engine import ModelFreeEngine, hybrid_config
from benchmarks.prefix_traces import Trace
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest

VOCAB = 32_000


@dataclass
class Outcome:
    """Results of a trace: answers, seconds to the first token and prompts by position in the order; prompt tokens."""

    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    first_token: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    prompts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    asked_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were not computed."""
        return sum(self.cached.values()) / self.asked_tokens

    def percentile(self, q: float) -> float:
        """Seconds to the first token."""
        return float(np.percentile(list(self.first_token.values()), q))


def replay(loop: ServingLoop, trace: Trace, clock: Callable[[], float], vocab: int) -> Outcome:
    """Keep ``at_a_time`` requests running, in the order of arrival; a turn waits for the answer before it.

    vocab: the engine's; tokens of the trace are taken modulo it.
    """
    outcome, history = Outcome(), [() for _ in trace.conversations]  # type: tuple[Outcome, list[tuple[int, ...]]]
    turns = [0] * len(trace.conversations)
    waiting, running = list(enumerate(trace.order)), {}  # type: tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]
    started: dict[int, float] = {}
    sampling = SamplingParams(ignore_eos=True)
    while waiting or running:
        busy = {conversation for _, conversation in running.values()}
        for place, conversation in waiting.copy():
            if len(running) == trace.at_a_time:
                break
            if conversation in busy:
                continue
            said = tuple(token % vocab for token in trace.conversations[conversation][turns[conversation]])
            prompt = outcome.prompts[place] = (*history[conversation], *said)
            outcome.asked_tokens += len(prompt)
            id_ = loop.add(ServingRequest(Request(prompt, sampling, trace.new_tokens)))
            running[id_], started[place] = (place, conversation), clock()
            busy.add(conversation)
            turns[conversation] += 1
            waiting.remove((place, conversation))
        for output in loop.step():
            if output.error is not None or output.piece is None:
                raise RuntimeError(f"a request of the trace failed: {output.error}")
            place, conversation = running[output.request_id]
            outcome.first_token.setdefault(place, clock() - started[place])
            answer = output.piece.generation
            if answer is not None:
                outcome.answers[place], outcome.cached[place] = answer.token_ids, answer.cached_tokens
                history[conversation] = (*answer.prompt_token_ids, *answer.token_ids)
                del running[output.request_id]
    return outcome


@dataclass(frozen=True)
class Cost:
    """Seconds of a step. A model of 8 billion weights in 16 bits on an H200-class GPU, from its data sheet: weights
    once from memory (4 TB/s), 40 microseconds a token (400 TFLOP/s), attention by context, and a state's copy."""

    weights: float = 4e-3
    token: float = 40e-6
    context_token: float = 1.6e-10
    host: float = 3e-4
    slot_copy: float = 5e-5


class CostEngine(ModelFreeEngine):
    """Computes only how long a step would take: ``clock``. The next token follows from the last one and its position.

    A hybrid of 24 recurrent layers (128 heads of 64 x 128, float32) and 4 attention layers (8 heads of 128, 16 bits).
    """

    name: ClassVar[str] = "cost-model"

    def __init__(self, rows: int, max_tokens: int, longest: int, cost: Cost | None = None) -> None:
        layers = (4, KVLayerConfig(8, 128)), (24, RecurrentLayerConfig(128, 64, 128, 10_240, 4))
        super().__init__(hybrid_config("cost-model", VOCAB, rows, longest, *layers), max_tokens)
        self.clock = 0.0
        self.tokens = 0
        self._cost = cost or Cost()

    @property
    def slot_bytes(self) -> int:
        return 24 * 128 * 64 * 128 * 4

    def block_bytes(self, block_size: int) -> int:
        return block_size * 4 * 2 * 8 * 128 * 2

    def step(self, inputs: PackedInputs) -> np.ndarray:
        cost, count = self._cost, inputs.input_ids.size
        self.tokens += count
        self.clock += cost.host + max(cost.weights, cost.token * count)
        self.clock += cost.context_token * float(inputs.positions.sum())
        best = (inputs.input_ids * 31 + inputs.positions * 7)[inputs.logits_indices] % VOCAB
        logits = np.zeros((best.size, VOCAB), np.float32)
        logits[np.arange(best.size), best] = 1
        return logits

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.clock += self._cost.slot_copy * len(sources)
