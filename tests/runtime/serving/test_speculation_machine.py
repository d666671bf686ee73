"""Any history of requests, cancellations, failures and steps of a loop that speculates, whatever the drafter does.

Every request ends once: with the pieces of plain decoding, or with an injected error. After every action the
pools add up, and what the prefix cache, the host tier's restored blocks and the sequences hold is exactly what their
tokens give: a draft that leaked in would be seen.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from hybridge.runtime.generation import GeneratedSequence, Piece, Request
from hybridge.runtime.prefix_cache.radix_cache import RadixCache
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import tokens_from_key
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import State
from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.serving.request import Output
from hybridge.runtime.speculation import DraftRequest, NgramDrafter, Proposal, SpeculationSettings
from hybridge.runtime.speculation.drafter import Drafter
from tests.runtime.serving.test_loop_machine import BEGINNING, BLOCK, EOS, MAX_SEQ, LoopMachine, SubmittedRequest
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.test_speculation import PartlyRight
from tests.runtime.serving.toy_loop import Letters
from tests.runtime.serving.troubled_engine import TroubledEngine
from tests.runtime.toy_engine import HYBRID, PURE_MAMBA
from tests.runtime.toy_paged_engine import VOCAB, paged_config, toy_kv, toy_logits, toy_state
from tests.support.effort import examples

MOST = 4
TROUBLES = ["raises", "interrupts", "foreign", "unlikely", "too few"]
UNLIKELY = "a draft token with a probability above 0"
# Of a draft model's engine.
CALLS = ["step", "copy_slots", "zero_slots", "launch"]
CACHES = [
    "blocks",
    PrefixCacheSettings(decode_interval=3),
    PrefixCacheSettings(prompt_checkpoints="branches", decode_interval=1),
    PrefixCacheSettings(decode_interval=2, cached_states=2, host_bytes=2000),
]
GREEDY = [
    {},
    {"logprobs": 2},
    {"repetition_penalty": 1.5},
    {"stop": ("A", "5")},
    {"stop": ("12", "3B"), "stop_token_ids": (20,)},
    {"n": 2, "ignore_eos": True},
    {"speculative_tokens": 1},
    {"speculative_tokens": 0},
    {"beam_width": 2, "n": 2},
]
DRAWN = [
    {"temperature": 0.8, "seed": 3, "n": 2},
    {"temperature": 1.0, "seed": 9, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.9, "seed": 1, "repetition_penalty": 1.3, "logprobs": 1, "stop_token_ids": (5, 6, 7)},
    {"temperature": 0.7, "seed": 4, "stop": ("1", "B")},
]


class Drawing:
    """Draws each token from a distribution near that of the model, or far from it."""

    def __init__(self, config, seed: int) -> None:
        self.config, self.rng = config, np.random.default_rng(seed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._sampled(list(each.tokens), each.most) for each in requests]

    def forget(self, sequence: int) -> None:
        pass

    def _sampled(self, text: list[int], most: int) -> Proposal:
        rows, size = [], len(text)
        for _ in range(most):
            weights = np.exp(self.rng.choice([0.1, 3.0]) * toy_logits(self.config, text).astype(np.float64))
            rows.append(weights / weights.sum())
            text.append(int(self.rng.choice(VOCAB, p=rows[-1])))
        return Proposal(tuple(text[size:]), np.array(rows))


class TroubledDrafter:
    """``drafter``, whose next call does what ``trouble`` says. Only live sequences may be passed to it.

    harmed: the requests (``requests_of`` sequences) that may not survive what it did, because their draft tokens cannot
    come from the distribution that it returned.
    """

    def __init__(self, drafter: Drafter, requests_of: Callable[[Sequence[int]], list[int]]) -> None:
        self.drafter, self.requests_of, self.trouble, self.troubles = drafter, requests_of, "", 0
        self.known: dict[int, list[int]] = {}
        self.harmed: set[int] = set()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        for each in requests:
            before = self.known.get(each.sequence, [])
            assert list(each.tokens[: len(before)]) == before
            self.known[each.sequence] = list(each.tokens)
        trouble, self.trouble = self.trouble, ""
        self.troubles += bool(trouble)
        if trouble == "unlikely":
            self.harmed.update(self.requests_of([requests[0].sequence]))
        if trouble == "raises":
            raise ValueError("the drafter was told to fail")
        if trouble == "interrupts":
            raise KeyboardInterrupt
        proposals = self.drafter.propose(requests)
        if trouble == "foreign":
            proposals[-1] = Proposal((*proposals[-1].token_ids[:-1], VOCAB))
        if trouble == "unlikely":
            proposals[0] = Proposal((1,), np.eye(VOCAB)[:1])
        return proposals[1:] if trouble == "too few" else proposals

    def forget(self, sequence: int) -> None:
        self.known.pop(sequence, None)
        self.drafter.forget(sequence)


class SpeculationMachine(LoopMachine):
    """Prompts of two tokens only, so that prefixes meet."""

    @initialize(
        memory=st.integers(400, 2400),
        rows=st.integers(1, 4),
        budget=st.integers(6, 30),
        cache=st.sampled_from(CACHES),
        most=st.integers(1, MOST),
        counting=st.sampled_from(["fixed", "fixed", "measured", "cheap"]),
        drafts=st.sampled_from(["pattern", "pattern", "ngram", "model", "draws"]),
        data=st.data(),
        **BEGINNING,
    )
    def start(self, kind, memory, rows, budget, swap_bytes, policy, cache, ahead, most, counting, drafts, data) -> None:
        self.build(kind, rows, budget, ahead)
        self.draft_engine: TroubledEngine | None = None
        self.samples_drafts = drafts == "draws"
        self.drafter = TroubledDrafter(self.make_drafter(drafts, kind[0], rows, most, data), self.requests_of)
        speculation = SpeculationSettings(
            most,
            self.drafter,
            adaptive=counting != "fixed",
            draft_token_cost=None if counting == "measured" else 0.0,
        )
        self.open(memory, rows, budget, swap_bytes, policy, cache, speculation, Letters())
        self.with_times_of_its_own()
        self.seen = self.seen_at = 0
        self.pieces: dict[tuple[int, int], list[Piece]] = defaultdict(list)

    def make_drafter(self, drafts: str, layers, rows: int, most: int, data: st.DataObject) -> Drafter:
        if drafts == "pattern":
            return PartlyRight(self.config, data.draw(st.lists(st.integers(0, most), min_size=1, max_size=5)))
        if drafts == "ngram":
            return NgramDrafter(1, 3)
        if drafts == "draws":
            return Drawing(self.config, data.draw(st.integers(0, 9)))
        same = layers if data.draw(st.booleans()) else data.draw(st.sampled_from([HYBRID, PURE_MAMBA]))
        self.draft_engine = TroubledEngine(paged_config(same, MAX_SEQ), 12, 2)
        memory = data.draw(st.sampled_from([None, 600, 1200]))
        return ModelDrafter(self.draft_engine, VOCAB, rows, MAX_SEQ, most, memory)

    def requests_of(self, sequences: Sequence[int]) -> list[int]:
        known = self.loop.scheduler.sequences
        return self.loop._requests.ids_of(known[sequence] for sequence in sequences)

    def with_times_of_its_own(self) -> None:
        """Steps take what a random number says: what they really take differs from run to run."""
        speculator, rng = self.loop._speculator, np.random.default_rng(5)
        record: Callable[..., None] = speculator.record_step
        speculator.record_step = lambda *step: record(*step[:-1], float(rng.random()))  # type: ignore[method-assign]

    @rule(data=st.data(), priority=st.integers(0, 2))
    def add(self, data: st.DataObject, priority: int) -> None:
        params = data.draw(st.sampled_from([*GREEDY, *DRAWN]))
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ - 12))
        # Up to the longest sequence that there may be.
        new = data.draw(st.integers(1, min(20, MAX_SEQ - len(prompt) + 1)))
        self.put(prompt, SamplingParams(**params), new, priority)

    @precondition(lambda self: any(self.loop.has(id_) for id_ in self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from([id_ for id_ in self.requests if self.loop.has(id_)])))

    @property
    def calm(self) -> bool:
        """Some steps after the last trouble, so that answers come to an end."""
        if self.troubles > self.seen:
            self.seen, self.seen_at = self.troubles, self.loop.steps
        return self.loop.steps - self.seen_at >= 6

    @precondition(lambda self: self.calm)
    @rule(trouble=st.sampled_from([*TROUBLES, *CALLS]), interrupts=st.booleans())
    def break_the_drafter(self, trouble: str, interrupts: bool) -> None:
        if trouble in TROUBLES:
            self.drafter.trouble = trouble
        elif self.draft_engine is not None:
            self.draft_engine.breaks = trouble, interrupts

    @rule()
    def step(self) -> None:
        poison(self.loop, self.engine)
        if self.draft_engine is not None and isinstance(self.drafter.drafter, ModelDrafter):
            caches = self.drafter.drafter._caches
            self.draft_engine.poison(caches._blocks, caches._slots)
        self.quietly(lambda: self.take(self.loop.step()))

    def quietly(self, work: Callable[[], object]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            super().quietly(work)

    @property
    def troubles(self) -> int:
        return self.engine.troubles + self.of_the_drafter

    @property
    def of_the_drafter(self) -> int:
        """How often the drafter was made to fail."""
        return self.drafter.troubles + (0 if self.draft_engine is None else self.draft_engine.troubles)

    def excuses(self, error: str) -> bool:
        return super().excuses(error) or UNLIKELY in error

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            if output.error is not None and UNLIKELY in str(output.error):
                assert output.request_id in self.drafter.harmed, "a request ends for the draft of another"
        for output in outputs:
            if output.piece is not None:
                self.pieces[output.request_id, output.piece.choice].append(output.piece)

    @invariant()
    def caches_hold_what_they_claim(self) -> None:
        if not hasattr(self, "loop"):
            return
        cache, scheduler = self.loop.prefix_cache, self.loop.scheduler
        if isinstance(cache, RadixCache):
            for node in cache.tree.walk():
                if node.attached:
                    blocks = cache.tree.blocks_of(node)
                    self.holds(tokens_from_key(node.key).tolist(), blocks, node.state)
        under_way = () if scheduler._builder is None else (*scheduler._builder.rows, *scheduler._builder.admitted)
        for sequence in scheduler.sequences.values():
            memory = sequence.memory
            if sequence.state is State.RUNNING and memory.exact and sequence not in under_way:
                assert memory.length < memory.stop, "a state that the prefix cache wants was passed by"
                needed = scheduler.manager.blocks_for(memory.length)
                assert len(memory.blocks) == needed, "blocks of rejected draft tokens are not released"
                self.holds(sequence.tokens[: memory.length], memory.blocks, memory.slot, memory.passed)

    def holds(self, tokens: list[int], blocks: list[int], slot: int | None, passed: int = 0) -> None:
        """Blocks from ``passed`` on, and the slot, are exactly those of ``tokens``."""
        if self.config.kv_layers:
            first = passed * BLOCK
            positions = np.arange(first, len(tokens))
            found = self.engine.kv[np.array(blocks, int)[positions // BLOCK], positions % BLOCK]
            np.testing.assert_array_equal(found, toy_kv(np.array(tokens[first:], np.int64), positions))
        if self.config.recurrent_layers and slot is not None:
            np.testing.assert_array_equal(self.engine.states[slot], toy_state(tokens))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.drafter.trouble = ""
        if self.draft_engine is not None:
            self.draft_engine.breaks = None
        super().teardown()
        assert not self.drafter.known, "a sequence that ended is not forgotten"
        if self.draft_engine is not None and isinstance(self.drafter.drafter, ModelDrafter):
            caches, sizes = self.drafter.drafter._caches, self.draft_engine.sizes
            assert sorted(caches._blocks) == list(range(sizes.num_blocks))
            assert sorted(caches._slots) == list(range(sizes.num_slots))
        for id_, request in self.requests.items():
            if request.error is None and not request.cancelled and not request.params.beam_width:
                for choice in range(request.params.n):
                    self.compare(self.pieces[id_, choice], request, choice)
        metrics = self.loop.speculation
        tried = [draft_tokens * rows for draft_tokens, rows in metrics.chosen.items()]
        assert 0 <= metrics.accepted <= metrics.proposed and metrics.proposed == sum(tried)
        assert metrics.failures <= self.of_the_drafter

    def alone(self, request: SubmittedRequest) -> list[tuple[int, ...]]:
        if request.params.beam_width:
            return super().alone(request)
        if self.is_one_of_many(request):
            return [request.answers[choice] for choice in range(request.params.n)]
        return [self.plain(request, choice)[-1].generation.token_ids for choice in range(request.params.n)]

    def is_one_of_many(self, request: SubmittedRequest) -> bool:
        """Drafts that draw take other random numbers, so that other tokens may come."""
        return self.samples_drafts and not request.params.greedy

    def compare(self, found: list[Piece], request: SubmittedRequest, choice: int) -> None:
        """Piece by piece what plain decoding gives: text, stops, log-probabilities."""
        if not self.is_one_of_many(request):
            assert [visible(piece) for piece in found] == [visible(piece) for piece in self.plain(request, choice)]

    def plain(self, request: SubmittedRequest, choice: int) -> list[Piece]:
        params, tokens, pieces = request.params, list(request.prompt), []
        one = Request(tuple(request.prompt), replace(params, n=1), request.new)
        answer = GeneratedSequence(0, one, EOS, Letters(), 0.0, choice)
        while not answer.finished:
            pieces.append(answer.accept(toy_logits(self.config, tokens)))
            tokens.append(answer.last_token)
        return pieces


def visible(piece: Piece) -> tuple:
    made = piece.generation
    ending = None if made is None else (made.text, made.token_ids, made.finish_reason, made.stopped_by, made.logprobs)
    return piece.text, piece.token_ids, piece.logprobs, piece.finish_reason, ending


SpeculationMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestSpeculation = SpeculationMachine.TestCase
