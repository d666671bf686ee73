"""Histories of requests whose tokens wait for masks, on an engine that chooses them behind its steps.

Masks, choices and launches fail or are interrupted, before their work or after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import SamplingParams, TokenSampling
from hybridge.runtime.sampling.edits import mask_of
from tests.runtime.serving.test_loop_machine import EOS, MAX_SEQ, LoopMachine, SubmittedRequest
from tests.runtime.serving.troubled_engine import TroubledAheadEngine
from tests.runtime.toy_paged_engine import VOCAB, paged_config
from tests.support.announced import Announced
from tests.support.effort import examples


class Thirds:
    """Every third token, beginning with another one after each. trouble: what the next call of that name raises."""

    trouble: ClassVar[tuple[str, BaseException] | None] = None

    def __init__(self) -> None:
        self._tokens = 0

    def mask(self) -> np.ndarray:
        self._break("mask")
        return mask_of(np.arange(self._tokens % 3, VOCAB, 3), VOCAB)

    def accept(self, token: int) -> None:
        self._break("accept")
        assert token % 3 == self._tokens % 3, "a token that the mask did not allow"
        self._tokens += 1

    def _break(self, call: str) -> None:
        if Thirds.trouble is not None and Thirds.trouble[0] == call:
            error, Thirds.trouble = Thirds.trouble[1], None
            raise error


def announced() -> Announced:
    """Masks whose arrays are known before they are computed."""
    return Announced(Thirds(), VOCAB)


SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3, "n": 2},
    {"allowed_tokens": announced},
    {"allowed_tokens": announced, "temperature": 0.8, "seed": 4},
    {"allowed_tokens": announced, "temperature": 1.2, "seed": 5, "n": 2},
    {"allowed_tokens": announced, "stop_token_ids": (5, 6, 7)},
    {"allowed_tokens": Thirds},
    {"allowed_tokens": Thirds, "logprobs": 1},
    {"beam_width": 2, "n": 2},
]


class ChoosingEngine(TroubledAheadEngine):
    """More calls that fail, before their work or after it."""

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> StepResult | None:
        found = super().launch_next(result, inputs, feeding)
        self._break("launched")
        return found

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> StepResult:
        self._break("choose")
        found = super().choose(result, samplings)
        self._break("chosen")
        return found

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext | None:
        self._break("prepare")
        found = super().prepare_next(result, samplings, inputs, feeding)
        self._break("prepared")
        return found


class MaskMachine(LoopMachine):
    """Most requests have masks."""

    masks_broken = 0

    def build(self, kind: Any, rows: int, budget: int, ahead: bool, pad_to: int = 1) -> None:
        layers, window = kind
        self.config = paged_config(layers, MAX_SEQ, window=window, eos=EOS)
        self.engine = ChoosingEngine(self.config, budget + pad_to, rows + pad_to, pad_to)
        self.engine.refuses = budget % 2 * (rows % 3)

    @rule(data=st.data(), params=st.sampled_from(SAMPLING), priority=st.integers(0, 2))
    def add(self, data: st.DataObject, params: dict[str, Any], priority: int) -> None:
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=MAX_SEQ - 10))
        self.put(prompt, SamplingParams(**params), data.draw(st.integers(1, 9)), priority)

    @precondition(lambda self: self.calm)
    @rule(
        call=st.sampled_from(["choose", "chosen", "launch", "launched", "prepare", "prepared"]),
        interrupts=st.booleans(),
    )
    def break_a_choice(self, call: str, interrupts: bool) -> None:
        self.engine.breaks = call, interrupts

    @rule(call=st.sampled_from(["mask", "accept"]), interrupts=st.booleans())
    def break_a_mask(self, call: str, interrupts: bool) -> None:
        Thirds.trouble = call, KeyboardInterrupt() if interrupts else ValueError("told to fail")
        self.masks_broken += 1

    @property
    def troubles(self) -> int:
        return super().troubles + self.masks_broken

    def excuses(self, error: str) -> bool:
        return super().excuses(error) or "the largest logit is nan" in error

    def teardown(self) -> None:
        Thirds.trouble = None
        super().teardown()

    def alone(self, request: SubmittedRequest) -> list[tuple[int, ...]]:
        Thirds.trouble = None
        return super().alone(request)


MaskMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
TestMasks = MaskMachine.TestCase
