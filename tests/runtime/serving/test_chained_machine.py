"""Any history of requests on engines that launch steps ahead: answers are those of each request alone elsewhere.

Arrivals, ends by a token or a length, cancellations, preemption and the prefix cache meet steps whose tokens are not
known yet. A recurrent state that went one token too far, or a block that was shared too early, changes later tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.generation import Request
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.announced import Announced
from tests.support.artifacts import ArtifactCache
from tests.support.effort import examples
from tests.support.thirds import VOCAB, Thirds

pytestmark = pytest.mark.slow
ROWS, MAX_SEQ, LONGEST, NEW = 4, 96, 40, 16
SIZES = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ}
PARAMS: list[dict[str, Any]] = [{}, {}, {"temperature": 0.9, "seed": 5}, {"logprobs": 1}, {"n": 2}]
PARAMS += [{"allowed_tokens": Thirds}, {"temperature": 0.9, "seed": 7, "allowed_tokens": Thirds}]
PARAMS += [{"temperature": 0.9, "seed": seed, "allowed_tokens": lambda: Announced(Thirds(), VOCAB)} for seed in (8, 9)]
FORMS = [("nemotron_h", {"hybrid_override_pattern": "M*"}), ("llama", {"num_hidden_layers": 1})]


class ChainedMachine(RuleBasedStateMachine):
    """``engine`` serves in little memory; ``alone``: the tokens of a request alone. ``eos`` ends many answers early."""

    engine: PagedEngine
    alone: Callable[[Request], list[tuple[int, ...]]]
    eos: tuple[int, ...]

    def __init__(self) -> None:
        super().__init__()
        engine = self.engine
        needed = 2 * (MAX_SEQ // 16 * engine.block_bytes(16) + engine.slot_bytes) + 8 * engine.slot_bytes
        cache = PrefixCacheSettings(decode_interval=1 << 20, cached_states=8)
        serving = ServingSettings(
            memory_bytes=needed, max_tokens=24, max_rows=ROWS - 1, swap_bytes=needed // 4, prefix_cache=cache
        )
        self.loop = ServingLoop(engine, serving, self.eos, None)
        self.requests: dict[int, Request] = {}
        self.found: dict[int, dict[int, tuple[int, ...]]] = {}

    @rule(data=st.data(), params=st.sampled_from(PARAMS))
    def add(self, data: st.DataObject, params: dict[str, Any]) -> None:
        # Two tokens, so that prefixes meet.
        prompt = data.draw(st.lists(st.integers(3, 4), min_size=1, max_size=LONGEST))
        self.put(Request(tuple(prompt), SamplingParams(**params), data.draw(st.integers(1, NEW))))

    @precondition(lambda self: any(self.found.values()))
    @rule(data=st.data())
    def continue_an_answer(self, data: st.DataObject) -> None:
        """The next turn begins with the state that the answer has left in the cache."""
        id_ = data.draw(st.sampled_from(sorted(id_ for id_, answers in self.found.items() if answers)))
        prompt = (*self.requests[id_].prompt_ids, *next(iter(self.found[id_].values())), 4)
        if len(prompt) <= MAX_SEQ - 4:
            self.put(Request(prompt, SamplingParams(), 4))

    def put(self, request: Request) -> None:
        id_ = self.loop.add(ServingRequest(request))
        self.requests[id_], self.found[id_] = request, {}

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.requests))))

    def leave(self, id_: int) -> None:
        if self.loop.has(id_):
            self.loop.cancel(id_)
            del self.requests[id_], self.found[id_]

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.take(self.loop.step())
            self.loop.scheduler.check_integrity()

    @rule(prompt=st.lists(st.integers(3, 4), min_size=1, max_size=9), data=st.data())
    def step_with_arrivals(self, prompt: list[int], data: st.DataObject) -> None:
        leaves = data.draw(st.one_of(st.none(), st.sampled_from(sorted(self.requests)))) if self.requests else None

        def arrivals() -> None:
            self.put(Request(tuple(prompt), SamplingParams(), 6))
            if leaves is not None:
                self.leave(leaves)

        self.take(self.loop.step(arrivals))

    @rule()
    def settle(self) -> None:
        self.loop.settle()

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            assert output.error is None, output.error
            assert output.piece is not None
            if output.piece.generation is not None and output.request_id in self.found:
                self.found[output.request_id][output.piece.choice] = output.piece.generation.token_ids

    @invariant()
    def pools_add_up(self) -> None:
        self.loop.scheduler.check_integrity()

    def teardown(self) -> None:
        while self.loop.busy:
            self.step(1)
        for id_, request in self.requests.items():
            found = self.found[id_]
            assert [found[choice] for choice in sorted(found)] == self.alone(request), request


def run_machine(engine: PagedEngine, folder: Path, most: int, after_each: Callable[[], None] = lambda: None) -> None:
    """Up to ``most`` histories on ``engine``; ONNX Runtime computes the expected tokens. ``after_each`` history."""
    eos = tuple(range(0, engine.config.vocab_size, 7))
    known: dict[Any, list[tuple[int, ...]]] = {}
    with LLM(folder, "onnxruntime", threads=1, serving=ServingSettings(memory_bytes=1 << 24)) as llm:

        def alone(request: Request) -> list[tuple[int, ...]]:
            params = request.params
            key = request.prompt_ids, params.seed, params.n, params.allowed_tokens, request.max_new_tokens
            if key not in known:
                loop = ServingLoop(llm.engine, ServingSettings(memory_bytes=1 << 24, prefix_cache="off"), eos, None)
                loop.add(ServingRequest(request))
                outputs = [o for _ in range(200) if loop.busy for o in loop.step()]
                ends = [o.piece for o in outputs if o.piece is not None and o.piece.generation is not None]
                known[key] = [p.generation.token_ids for p in sorted(ends, key=lambda p: p.choice) if p.generation]
            return known[key]

        class Machine(ChainedMachine):
            def teardown(self) -> None:
                super().teardown()
                after_each()

        Machine.engine, Machine.alone, Machine.eos = engine, staticmethod(alone), eos
        case = Machine.TestCase
        case.settings = settings(max_examples=examples(most), stateful_step_count=25, deadline=None)
        case().runTest()


@pytest.mark.parametrize(("family", "overrides"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_any_history_on_the_torch_engine(family: str, overrides: dict[str, Any], artifacts: ArtifactCache) -> None:
    pytest.importorskip("torch", reason="the torch engine needs torch")
    from tests.runtime.torch.test_chained_steps import AllKernels, ChoosingSteps

    folder = artifacts.get(family, "float32", overrides, **SIZES).folder
    engine, kernels = ChoosingSteps(folder, device="cpu"), AllKernels()
    engine.device.kernels = kernels
    run_machine(engine, folder, 60)
    assert kernels.ended and engine.joined
    engine.device.kernels = None


@pytest.mark.parametrize(("family", "overrides"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_any_history_on_the_tensorrt_engine(
    family: str,
    overrides: dict[str, Any],
    artifacts: ArtifactCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    from tests.runtime.tensorrt.paged_double import ParsedEngine, open_double

    folder = artifacts.get(family, "float32", overrides, **SIZES).folder
    opened = open_double(ParsedEngine(folder, tmp_path, plugins="off"), monkeypatch)
    # The next history's pools replace the captured steps of this one.
    replayed: list[bool] = []

    def note() -> None:
        replayed.append(any(key.fed and step.is_replayed for key, (step, _) in opened.engine.steps.captured.items()))

    run_machine(opened.engine, folder, 20, note)
    assert any(replayed)
    opened.close()
