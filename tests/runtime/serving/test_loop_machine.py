"""Any history of requests, cancellations, steps and failures of the engine: every request ends once, with the tokens
of each alone or with an injected error, and the pools add up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation import Request
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.scheduler import Fcfs, Priority
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.serving.beams_alone import beams_alone
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.test_speculation import PartlyRight
from tests.runtime.serving.troubled_engine import TroubledAheadEngine, TroubledEngine
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import paged_config, toy_logits
from tests.support.effort import examples

MAX_SEQ, BLOCK, MOST = 32, 4, 3
EOS = (17, 40)
KINDS = [(HYBRID, None), (HYBRID, 5), (PURE_ATTENTION, None), (PURE_ATTENTION, 6), (PURE_MAMBA, None)]
CACHES = ["off", "blocks", PrefixCacheSettings(decode_interval=4), PrefixCacheSettings(decode_interval=1)]
SAMPLING = [
    {},
    {"temperature": 1.0, "seed": 3, "n": 2},
    {"temperature": 0.7, "seed": 9, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
    {"n": 3},
    {"repetition_penalty": 1.6, "logprobs": 2},
    {"temperature": 0.9, "seed": 1, "repetition_penalty": 1.3, "stop_token_ids": (5, 6, 7)},
    {"beam_width": 2, "n": 2},
    {"beam_width": 3, "length_penalty": 0.5},
    {"speculative_tokens": 1},
]
# What any history begins with, and what those of small pools do.
BEGINNING: dict[str, Any] = {
    "kind": st.sampled_from(KINDS),
    "swap_bytes": st.sampled_from([0, 200, 100_000]),
    "policy": st.sampled_from([Fcfs(), Priority(patience=3)]),
    "ahead": st.booleans(),
}
SMALL = BEGINNING | {
    "memory": st.integers(310, 1200),
    "rows": st.integers(1, 5),
    "budget": st.integers(6, 24),
    "pattern": st.lists(st.integers(0, MOST), min_size=1, max_size=5),
}


@dataclass
class SubmittedRequest:
    """A request, and what has come of it."""

    prompt: list[int]
    params: SamplingParams
    new: int
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    error: str | None = None
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        return self.cancelled or self.error is not None or len(self.answers) == self.params.n


class LoopMachine(RuleBasedStateMachine):
    """Prompts of two tokens only, so that prefixes meet."""

    @initialize(
        host=st.sampled_from([None, None, 300]),
        cache=st.sampled_from(CACHES),
        speculates=st.booleans(),
        pad_to=st.sampled_from([1, 4]),
        **SMALL,
    )
    def start(
        self, kind, memory, rows, budget, swap_bytes, host, policy, cache, speculates, ahead, pad_to, pattern
    ) -> None:
        self.build(kind, rows, budget, ahead, pad_to)
        self.engine.host_bytes_left = host
        speculation = None
        if speculates:
            drafter = PartlyRight(self.config, pattern)
            speculation = SpeculationSettings(MOST, drafter, adaptive=False)
        self.open(memory, rows, budget, swap_bytes, policy, cache, speculation)

    def build(self, kind, rows, budget, ahead, pad_to=1) -> None:
        """The engine; its kind is layers and a window."""
        layers, window = kind
        self.config = paged_config(layers, MAX_SEQ, window=window, eos=EOS)
        engine_kind = TroubledAheadEngine if ahead else TroubledEngine
        self.engine = engine_kind(self.config, budget + pad_to, rows + pad_to, pad_to)
        # Some engines launch no step ahead at times.
        self.engine.refuses = rows % 3

    def open(self, memory, rows, budget, swap_bytes, policy, cache, speculation, tokenizer=None) -> None:
        """The loop over the engine."""
        serving = ServingSettings(
            BLOCK, rows, max(rows, budget), MAX_SEQ, memory, 0.9, swap_bytes, policy, cache, speculation
        )
        self.loop = ServingLoop(self.engine, serving, EOS, tokenizer)
        self.requests: dict[int, SubmittedRequest] = {}

    @rule(data=st.data(), params=st.sampled_from(SAMPLING), priority=st.integers(0, 2))
    def add(self, data: st.DataObject, params: dict, priority: int) -> None:
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ - 8))
        self.put(prompt, SamplingParams(**params), data.draw(st.integers(1, 8)), priority)

    def put(self, prompt: list[int], params: SamplingParams, new: int, priority: int) -> None:
        try:
            id_ = self.loop.add(ServingRequest(Request(tuple(prompt), params, new), 0, priority))
        except RequestError as error:
            assert "the pools can hold" in str(error) and params.beam_width
            return
        assert id_ not in self.requests
        self.requests[id_] = SubmittedRequest(prompt, params, new)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.requests))))

    def leave(self, id_: int) -> None:
        self.requests[id_].cancelled = True
        self.quietly(lambda: self.loop.cancel(id_))
        assert not self.loop.has(id_)

    @rule()
    def step(self) -> None:
        poison(self.loop, self.engine)
        self.quietly(lambda: self.take(self.loop.step()))

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), data=st.data())
    def step_with_arrivals(self, prompt: list[int], data: st.DataObject) -> None:
        leaves = data.draw(st.one_of(st.none(), st.sampled_from(sorted(self.requests)))) if self.requests else None

        def arrivals() -> None:
            self.put(prompt, SamplingParams(), 4, 0)
            if leaves is not None:
                self.requests[leaves].cancelled = True
                self.loop.cancel(leaves)

        self.quietly(lambda: self.take(self.loop.step(arrivals)))

    @rule()
    def settle(self) -> None:
        self.quietly(self.loop.settle)

    @property
    def calm(self) -> bool:
        """Whether something may break."""
        return True

    @precondition(lambda self: self.calm)
    @rule(
        call=st.sampled_from(["step", "copy_blocks", "copy_slots", "zero_slots", "swap_in", "advance", "launch"]),
        interrupts=st.booleans(),
    )
    def break_a_call(self, call: str, interrupts: bool) -> None:
        self.engine.breaks = call, interrupts

    @precondition(lambda self: self.calm)
    @rule(row=st.integers(0, 3))
    def spoil_logits(self, row: int) -> None:
        self.engine.spoils = row

    @rule()
    def run_for_a_while(self) -> None:
        for _ in range(5):
            self.step()

    def quietly(self, work) -> None:
        """Only calls that were set to be interrupted are."""
        try:
            work()
        except KeyboardInterrupt:
            assert self.troubles

    @property
    def troubles(self) -> int:
        """How often anything was broken."""
        return self.engine.troubles

    def excuses(self, error: str) -> bool:
        """Whether the error was injected."""
        return any(words in error for words in ("told to fail", "interrupted", "finite"))

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            request = self.requests[output.request_id]
            assert not request.ended, "a request hears of nothing after its end"
            if output.error is not None:
                request.error = str(output.error)
                assert self.troubles and self.excuses(request.error), request.error
                continue
            piece = output.piece
            request.tokens[piece.choice] += piece.token_ids
            if piece.generation is not None:
                request.answers[piece.choice] = piece.generation.token_ids
                assert tuple(request.tokens[piece.choice]) == piece.generation.token_ids, (request, piece)
        for id_, request in self.requests.items():
            if len(request.answers) == request.params.n:
                assert not self.loop.has(id_)

    @invariant()
    def pools_add_up(self) -> None:
        if hasattr(self, "loop"):
            self.loop.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.engine.breaks = self.engine.spoils = None
        limit = 2000
        while self.loop.busy:
            self.step()
            self.pools_add_up()
            limit -= 1
            assert limit, "the loop is stuck"
        scheduler, manager = self.loop.scheduler, self.loop.scheduler.manager
        assert not scheduler.sequences and not scheduler.host_bytes
        # A chained step is given up with the one before it.
        assert self.engine.pending is None or self.troubles
        if self.loop.prefix_cache is None:
            assert manager.pool.available == manager.pool.num_blocks and not manager.slots.used
        assert manager.rows.free == self.loop.shape.max_rows
        for request in self.requests.values():
            assert request.ended, request
            if request.error is None and not request.cancelled:
                assert [request.answers[choice] for choice in range(request.params.n)] == self.alone(request)

    def alone(self, request: SubmittedRequest) -> list[tuple[int, ...]]:
        params = request.params
        if params.beam_width:
            found = beams_alone(self.config, request.prompt, request.new, params.beam_width, params.length_penalty)
            return [tuple(tokens) for tokens in found[: params.n]]
        return [self.sampled_alone(request, choice) for choice in range(params.n)]

    def sampled_alone(self, request: SubmittedRequest, choice: int) -> tuple[int, ...]:
        given = {name: value for name, value in vars(request.params).items() if name != "n"}
        if given["seed"] is not None:
            given["seed"] += choice
        sampler, tokens = Sampler(SamplingParams(**given), request.prompt), list(request.prompt)
        while len(tokens) < len(request.prompt) + request.new:
            tokens.append(sampler.sample(toy_logits(self.config, tokens))[0])
            if tokens[-1] in (*EOS, *request.params.stop_token_ids):
                break
        return tuple(tokens[len(request.prompt) :])


LoopMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
TestLoop = LoopMachine.TestCase
