"""Which steps of prompts give logits: chunks after which none are needed are only fed."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.dense import StateSet, StepInputs
from hybridge.runtime.engines.dense_as_paged.prompts import Prompt, feed
from tests.runtime.toy_engine import ToyEngine, toy_config, toy_logits


class FedEngine(ToyEngine):
    """``fed``: the widths of the steps that give no logits."""

    def __init__(self, config: RuntimeConfig, max_step_tokens: int) -> None:
        super().__init__(config, max_step_tokens)
        self.fed: list[int] = []

    def feed(self, inputs: StepInputs, states: StateSet) -> None:
        self.fed.append(inputs.input_ids.shape[1])
        super().feed(inputs, states)


def test_only_chunks_with_requested_tokens_give_logits() -> None:
    engine = FedEngine(toy_config(max_batch=2, max_seq_len=256), max_step_tokens=64)
    rows = np.random.default_rng(2).integers(0, engine.config.vocab_size, (2, 150))
    prompts = [Prompt(0, rows[0], 0, [149]), Prompt(1, rows[1, :100], 0, [])]
    feed(engine, engine.allocate_states(2, 256), prompts)
    assert engine.fed == [64, 64] and [width for _, width in engine.steps] == [64, 64, 22]
    assert [prompt.done for prompt in prompts] == [150, 100] and not prompts[1].logits
    assert np.array_equal(prompts[0].logits[0], toy_logits(engine.config, rows[0].tolist()))
