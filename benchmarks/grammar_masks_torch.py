"""The time that masks of grammars add to a served decode step of a 2.65 B hybrid model on a GPU.

Each answer is another JSON value of a schema: the GPU samples with the masks, and its tokens are then replaced by those
of the values, as the weights are random. In turns with them: the same steps without masks, launched ahead or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import median

from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.grammar_masks import EOS, MOST_SHARE, SCHEMA, added_shares, json_tokens, large_tokenizer
from benchmarks.measure import spreads, take_turns
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Gate, Report, Target, require
from benchmarks.traffic import Served, host_microseconds, serve
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import OrderedResult, StepResult
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.sampling import NO_SAMPLING, DrawError, SampledToken, SamplingParams, TokenSampling
from hybridge.runtime.sandbox.grammar import vocabulary
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.serve.grammar_tokens import GrammarTokens, MaskBatch
from hybridge.serve.grammars import grammar_copies, json_grammar


@dataclass(frozen=True)
class TorchGrammarMaskSettings:
    """``batch`` answers of ``steps`` tokens, of which ``gate_steps`` are checked before. device: "cuda" or "cpu".

    pool_bytes: of each of two engines. work: a folder that keeps checkpoint and artifact.
    """

    device: str = "cuda"
    batch: int = 64
    steps: int = 128
    gate_steps: int = 8
    repeats: int = 5
    pool_bytes: int = 4 << 30
    work: str | None = None
    model: Config = field(default_factory=lambda: GPU_MODEL)


class ScriptedResult(OrderedResult):
    """``result`` of ``count`` logits, whose tokens with masks are replaced."""

    def __init__(self, engine: ScriptedEngine, result: StepResult, count: int) -> None:
        super().__init__(result, range(count))
        self._engine = engine

    @property
    def device_result(self) -> StepResult:
        """The result of the engine itself."""
        return self._result

    def fed_tokens(self) -> list[int]:
        return self._result.fed_tokens()

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        engine, found = self._engine, self._result.sampled(samplings)
        for row, how in samplings.items():
            if how.edits is not None:
                text = engine.texts[row][how.position]
                if engine.checks:
                    own = found[row]
                    engine.checked += 1
                    engine.refused += not isinstance(own, tuple) or not how.edits.allows(own[0])
                    engine.refused += not how.edits.allows(text)
                found[row] = text, None
        return found


class ScriptedEngine(TorchPagedEngine):
    """Where answers have masks, row i gets the next token of ``texts``[i], after sampling as usual.

    If it ``checks``, ``refused`` counts the tokens of both kinds that the masks do not allow, and ``checked`` all rows.
    """

    texts: Sequence[Sequence[int]] = ()
    checks = False
    refused = checked = 0

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:  # type: ignore[override]
        found = super().launch(inputs, samplings)
        return found if self.chooses_later else ScriptedResult(self, found, len(inputs.logits_indices))

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> TorchStepResult | None:
        own = result.device_result if isinstance(result, ScriptedResult) else result
        return super().launch_next(own, inputs, feeding)

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext | None:
        own = result.device_result if isinstance(result, ScriptedResult) else result
        prepared = super().prepare_next(own, samplings, inputs, feeding)
        if prepared is None:
            return None
        choose = prepared.choose
        return replace(prepared, choose=lambda: ScriptedResult(self, choose(), len(samplings)))

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> StepResult:  # type: ignore[override]
        return ScriptedResult(self, super().choose(result, samplings), len(samplings))


def run(settings: TorchGrammarMaskSettings) -> Report:
    """Check that sampled tokens keep to the masks, then measure."""
    from benchmarks.engine_runs import device_name

    with work_folder(settings.work) as work:
        folder = linked_artifact(
            work, "artifact-masks", settings.model, layout="paged", max_batch_size=settings.batch,
            max_seq_len=settings.steps + 16,
        )  # fmt: skip
        vocab = int(settings.model["vocab_size"])
        tokens = vocabulary(large_tokenizer(vocab), vocab, [EOS])
        texts = [json_tokens(row, settings.steps, tokens) for row in range(settings.batch)]
        with (
            closing(ScriptedEngine(folder, settings.device)) as ahead,
            closing(ScriptedEngine(folder, settings.device, chains_steps=False)) as plain,
            closing(MaskBatch(vocab)) as masks,
        ):
            ahead.texts = texts
            grammar = grammar_copies(tokens, json_grammar(SCHEMA))
            loop = _loop(ahead, settings)
            runs = {
                "masked": _Run(loop, settings, lambda: grammar.tokens(frozenset({EOS}), masks)),
                "plain": _Run(_loop(plain, settings), settings),
                "ahead": _Run(loop, settings),
            }
            gates = require(*_gates(ahead, runs["masked"], settings))
            times = take_turns({name: each.step_us for name, each in runs.items()}, settings.repeats)
            waits = {name: each.host_us[-settings.repeats :] for name, each in runs.items()}
            device = device_name(plain.device)
    shares = added_shares(times)
    title = f"time that masks add to a step of {settings.batch} rows"
    results = {"step_us": spreads(times), "host_us": spreads(waits), "added_share": shares, "device": device}
    return Report(gates, results, (Target(title, shares["ahead"].median, "at most", MOST_SHARE, ""),))


def _gates(engine: ScriptedEngine, masked: _Run, settings: TorchGrammarMaskSettings) -> list[Gate]:
    engine.checks, engine.refused, engine.checked = True, 0, 0
    found = masked.served(settings.gate_steps)
    engine.checks = False
    wrong = sum(list(one) != text[: settings.gate_steps] for one, text in zip(found.answers, engine.texts, strict=True))
    missing = settings.batch * settings.gate_steps - engine.checked
    return [
        Gate("answers that differ from the values", float(wrong), 0.0),
        Gate("tokens of the GPU and of the values that the masks refuse", float(engine.refused), 0.0),
        Gate("tokens that were not sampled with a mask", float(missing), 0.0),
    ]


def _loop(engine: ScriptedEngine, settings: TorchGrammarMaskSettings) -> ServingLoop:
    serving = ServingSettings(max_rows=settings.batch, max_tokens=4 * settings.batch, memory_bytes=settings.pool_bytes)
    return ServingLoop(engine, serving, (), None)


class _Run:
    """Serves all answers at once. allowed: makes what follows one answer's grammar; None: no masks.

    host_us: by call of ``step_us``, the part of the median step in which the GPU waits for the host.
    """

    def __init__(
        self, loop: ServingLoop, settings: TorchGrammarMaskSettings, allowed: Callable[[], GrammarTokens] | None = None
    ) -> None:
        self._loop, self._settings, self._allowed = loop, settings, allowed
        self.host_us: list[float] = []

    def served(self, steps: int) -> Served:
        rows = range(self._settings.batch)
        params = [
            SamplingParams(temperature=1.0, seed=row, ignore_eos=True, allowed_tokens=self._allowed) for row in rows
        ]
        return serve(self._loop, [[1, row + 3] for row in rows], [0.0] * len(rows), steps, params)

    def step_us(self) -> float:
        """The median step in which all rows decode."""
        served, rows = self.served(self._settings.steps), self._settings.batch
        self.host_us.append(median(host_microseconds(served, rows)))
        return median(1e6 * step.wall for step in served.steps if step.rows == step.tokens == rows)
