"""The time that masks of grammars add to a decode step of 64 rows: every answer is another JSON value of a schema.

Beside them, in turns, the same step without masks, launched ahead like them or not. The device is a clock,
so that nothing but the host's work is measured: settings and masks are written as for the kernels of sampling.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np
from llguidance import LLTokenizer

from benchmarks.artifacts import DEMO_CHECKPOINT
from benchmarks.measure import Spread, spreads, take_turns
from benchmarks.model_free_engine import ModelFreeEngine, hybrid_config
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import Served, serve
from hybridge.artifact.errors import EngineError
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.device_sampling import table_bytes
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.packed_sampling import PackedSampling
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, SampledToken, SamplingParams, TokenSampling
from hybridge.runtime.sandbox.grammar import vocabulary
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.serve.grammar_tokens import MaskBatch
from hybridge.serve.grammars import grammar_copies, json_grammar
from hybridge.trt_plugins.kernels.fused.sampling import edit_type, settings_type

MOST_SHARE = 0.05
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "number"}, "parts": {"type": "array"}},
        "required": ["name", "size", "parts"],
    },
}
EOS = 2


@dataclass(frozen=True)
class GrammarMaskSettings:
    """``batch`` answers of ``steps`` tokens from a vocabulary of ``vocab``, on a device whose step takes ``step_us``
    and whose sampling takes ``sampling_us``."""

    batch: int = 64
    steps: int = 128
    vocab: int = 151_936
    step_us: float = 2300.0
    sampling_us: float = 50.0
    repeats: int = 5


class TimedResult(StepResult):
    """Done at ``end`` (time.perf_counter)."""

    def __init__(self, engine: TimedEngine, best: np.ndarray, end: float) -> None:
        self._engine, self._best, self.end = engine, best, end
        self.samplings: Mapping[int, TokenSampling] = NO_SAMPLING
        self._chosen: dict[int, SampledToken] = {}

    @property
    def is_ready(self) -> bool:
        return time.perf_counter() >= self.end

    def best_tokens(self) -> list[int | None]:
        # In the device's time, which the host waits for anyway.
        self._chosen = {index: (self._engine.token(index, how), None) for index, how in self.samplings.items()}
        time.sleep(max(0.0, self.end - time.perf_counter()))
        return list(self._best.tolist())

    def fed_tokens(self) -> list[int]:
        return self._best.tolist()

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, Any]:
        return {index: self._chosen[index] for index in samplings}

    def logits(self, index: int) -> np.ndarray:
        raise EngineError("the timed engine has no logits")


class TimedEngine(ModelFreeEngine):
    """Its greedy tokens are positions; those that it samples are the next ones of each row's ``texts``.

    ``refused`` counts those that a mask does not allow.
    """

    name: ClassVar[str] = "timed"
    runs_ahead = chooses_later = samples_in_steps = prepares_next = True

    def __init__(self, settings: GrammarMaskSettings, texts: Sequence[Sequence[int]], chains: bool) -> None:
        self._settings, self._texts, self._chains, self.refused = settings, texts, chains, 0
        layers = (1, KVLayerConfig(1, 1)), (1, RecurrentLayerConfig(1, 1, 1, 1, 2))
        rows = settings.batch
        config = hybrid_config("timed", settings.vocab, rows, settings.steps + 16, *layers)
        super().__init__(config, rows * settings.steps)
        tables = [np.zeros(nbytes, np.uint8) for nbytes in table_bytes(rows, settings.vocab, False)]
        masks = tables[2].view(np.uint32).reshape(rows, -1)
        self._packed = PackedSampling(
            tables[0].view(settings_type()), tables[1].view(edit_type()), masks, settings.vocab, False
        )
        self._end = 0.0

    @property
    def chains_steps(self) -> bool:
        return self._chains

    def token(self, row: int, how: TokenSampling) -> int:
        """The next token of the text of ``row``."""
        found = self._texts[row][how.position]
        self.refused += how.edits is not None and not how.edits.allows(found)
        return found

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> TimedResult:
        best = inputs.positions[inputs.logits_indices] % self._settings.vocab
        if samplings:
            self._packed.fill(samplings)
        self._end = max(self._end, time.perf_counter()) + 1e-6 * self._settings.step_us
        result = TimedResult(self, best, self._end)
        return result if samplings is CHOSEN_LATER else self._sampling(result, samplings)

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> TimedResult:
        assert isinstance(result, TimedResult)
        self._packed.fill(samplings)
        return self._sampling(result, samplings)

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext:
        assert isinstance(result, TimedResult)
        self._packed.prepare(samplings)

        def choose() -> TimedResult:
            self._packed.set_masks()
            return self._sampling(result, samplings)

        return PreparedNext(choose, lambda: self.launch_next(result, inputs, feeding))

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> TimedResult:
        return self.launch(inputs, feeding.samplings)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        raise EngineError("the timed engine has no logits: launch its steps")

    def _sampling(self, result: TimedResult, samplings: Mapping[int, TokenSampling]) -> TimedResult:
        self._end = max(self._end, time.perf_counter()) + 1e-6 * self._settings.sampling_us
        result.samplings, result.end = samplings, self._end
        return result


def run(settings: GrammarMaskSettings) -> Report:
    """Check that masks allow the right tokens, then measure."""
    tokens = vocabulary(large_tokenizer(settings.vocab), settings.vocab, [EOS])
    grammar, batch = grammar_copies(tokens, json_grammar(SCHEMA)), MaskBatch(settings.vocab)
    texts = [json_tokens(row, settings.steps, tokens) for row in range(settings.batch)]
    stops = frozenset({EOS})

    def served(masked: bool, chains: bool) -> tuple[Served, int]:
        follow = (lambda: grammar.tokens(stops, batch)) if masked else None
        params = [
            SamplingParams(temperature=1.0, seed=row, ignore_eos=True, allowed_tokens=follow)
            for row in range(settings.batch)
        ]
        engine, memory = TimedEngine(settings, texts, chains), settings.batch * (settings.steps + 64) * 2
        loop = ServingLoop(engine, ServingSettings(16, memory_bytes=memory), (), None)
        prompts = [[1, row + 3] for row in range(settings.batch)]
        return serve(loop, prompts, [0.0] * settings.batch, settings.steps, params), engine.refused

    try:
        found, refused = served(masked=True, chains=True)
        wrong = sum(list(one) != list(other) for one, other in zip(found.answers, texts, strict=True))
        gates = require(
            Gate("answers that differ from the texts", float(wrong), 0.0),
            Gate("tokens of the texts that the masks refuse", float(refused), 0.0),
        )
        times = take_turns(
            {
                "masked": lambda: _step_us(settings, served(masked=True, chains=True)[0]),
                "plain": lambda: _step_us(settings, served(masked=False, chains=False)[0]),
                "ahead": lambda: _step_us(settings, served(masked=False, chains=True)[0]),
            },
            settings.repeats,
        )
    finally:
        batch.close()
    added = added_shares(times)
    title = f"time that masks add to a step of {settings.batch} rows"
    return Report(
        gates,
        {"step_us": spreads(times), "added_share": added},
        (Target(title, added["ahead"].median, "at most", MOST_SHARE, ""),),
    )


def added_shares(times: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """What steps with masks take beyond the same steps without, launched ahead or not; times: by kind of step."""
    return {
        name: Spread.of(one / other - 1 for one, other in zip(times["masked"], times[name], strict=True))
        for name in ("ahead", "plain")
    }


def _step_us(settings: GrammarMaskSettings, served: Served) -> float:
    """The median step in which all rows decode."""
    rows = settings.batch
    return median(1e6 * step.wall for step in served.steps if step.rows == step.tokens == rows)


def json_tokens(row: int, length: int, tokens: LLTokenizer) -> list[int]:
    """The first ``length`` tokens of a value of the schema."""
    draws = random.Random(row)
    words = ["sea", "whale", "harbour", "the long voyage", "north-west", "a sail", "captain", "tide", "salt and rope"]
    items: list[dict[str, Any]] = []
    found: list[int] = []
    while len(found) < length:
        parts = [draws.choice(words) for _ in range(draws.randrange(4))]
        name = " ".join(draws.choices(words, k=2))
        items.append({"name": name, "size": draws.randrange(10**4) / 10, "parts": parts})
        found = tokens.greedy_tokenize(json.dumps(items))
    return found[:length]


def large_tokenizer(vocab: int) -> str:
    """The demo checkpoint's tokenizer.json with tokens that join two or three of its own, up to ``vocab``."""
    found = json.loads((DEMO_CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
    tokens, draws = found["model"]["vocab"], random.Random(0)
    special = {each["content"] for each in found.get("added_tokens", ())}
    base = [token for token in tokens if token not in special]
    while len(tokens) < vocab:
        tokens.setdefault("".join(draws.choices(base, k=draws.randint(2, 3))), len(tokens))
    return json.dumps(found)
