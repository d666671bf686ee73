"""Taking checkpoints: the host waits for no copy, and a request takes no slot but its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.serving.test_prefix_cache import line
from tests.runtime.serving.toy_loop import MAX_SEQ, answers, make_request, run_all, toy_loop
from tests.runtime.toy_ahead_engine import AheadToyEngine
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config, toy_greedy, toy_state


class Watched(StepResult):
    """A result that tells when it is waited for."""

    def __init__(self, engine: WatchedEngine, result: StepResult) -> None:
        self._engine, self.late = engine, result

    @property
    def is_ready(self) -> bool:
        return self.late.is_ready

    def best_tokens(self) -> list[int | None]:
        self._engine.calls.append("wait")
        return self.late.best_tokens()

    def fed_tokens(self) -> list[int]:
        return self.late.fed_tokens()

    def logits(self, index: int) -> np.ndarray:
        self._engine.calls.append("wait")
        return self.late.logits(index)


class WatchedEngine(AheadToyEngine):
    """``calls``: those of the engine, in order."""

    def __init__(self, chains: bool) -> None:
        super().__init__(paged_config(HYBRID, MAX_SEQ), max_tokens=70, max_rows=16)
        self._chains = chains
        self.calls: list[str] = []

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> StepResult:
        self.calls.append("launch")
        return Watched(self, super().launch(inputs, samplings))

    @property
    def chains_steps(self) -> bool:
        return self._chains

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> StepResult | None:
        assert isinstance(result, Watched)
        self.calls.append("launch")
        found = super().launch_next(result.late, inputs, feeding)
        return None if found is None else Watched(self, found)

    def copy_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.calls.append("copy")
        super().copy_slots(sources, targets)

    def swap_out(self, blocks: Sequence[int], slots: Sequence[int]) -> HostCopy:
        self.calls.append("wait")
        return super().swap_out(blocks, slots)


@pytest.mark.parametrize("chains", [False, True])
@pytest.mark.parametrize("memory_bytes", [2_000, 10_000])
def test_taking_a_state_delays_no_request(memory_bytes: int, chains: bool) -> None:
    """States are copied by the device behind the step; the host waits once, for the tokens."""
    engine = WatchedEngine(chains)
    cache = PrefixCacheSettings(decode_interval=2, cached_states=8)
    settings = ServingSettings(4, 4, 24, MAX_SEQ, memory_bytes, prefix_cache=cache)
    loop = ServingLoop(engine, settings, (), None)
    prompts = [[*line(1, 20), *line(seed, 12)] for seed in range(2, 10)]
    expected = {
        (loop.add(make_request(prompt, 12)), 0): tuple(toy_greedy(engine.config, prompt, 12)) for prompt in prompts
    }
    assert answers(run_all(loop)) == expected
    assert loop.prefix_cache.metrics.inserted_states > 30
    after = "".join(word[0] for word in engine.calls)
    steps = after.split("l")[1:]
    assert any(step.startswith("c") for step in steps), "no state was taken"
    for step in steps:
        # Behind a launch come copies of states, then a single wait, then copies for sequences that begin or fork.
        assert set(step) <= {"c", "w"} and (step.count("w") == 1 or chains), after
    assert after.count("w") == len(steps) and ("ll" in after or "lcl" in after) == chains


def test_a_request_never_holds_more_than_one_slot() -> None:
    cache = PrefixCacheSettings(decode_interval=2, cached_states=9)
    loop, engine = toy_loop(prefix_cache=cache, max_rows=4, max_tokens=16, memory_bytes=20_000)
    prompts = [[*line(1, 20), *line(seed, 25)] for seed in range(2, 10)]
    expected = {
        (loop.add(make_request(prompt, 12)), 0): tuple(toy_greedy(engine.config, prompt, 12)) for prompt in prompts
    }
    outputs = []
    while loop.busy:
        outputs += loop.step()
        loop.scheduler.check_integrity()
        memories = [sequence.memory for sequence in loop.scheduler.sequences.values() if sequence.memory.row >= 0]
        assert all(len(memory.slots) == 1 for memory in memories)
        assert loop.scheduler.manager.slots.used == len(memories) + loop.prefix_cache.tree.states
    assert answers(outputs) == expected


def test_an_engine_that_takes_checkpoints_computes_a_prompt_in_one_step() -> None:
    config, prompt = paged_config(HYBRID, 300), line(1, 280)
    for takes in (True, False):
        engine = ToyPagedEngine(config, max_tokens=300, max_rows=4)
        engine.takes = takes
        loop = ServingLoop(
            engine, ServingSettings(4, 4, 300, 300, 40_000, prefix_cache=PrefixCacheSettings()), (), None
        )
        id_ = loop.add(make_request(prompt, 1))
        assert answers(run_all(loop)) == {(id_, 0): tuple(toy_greedy(config, prompt, 1))}
        # After 70, 140, 210 and 279 tokens, and at the end.
        assert loop.steps == (1 if takes else 5)
        states = {
            node.end: engine.states[node.state] for node in loop.prefix_cache.tree.walk() if node.state is not None
        }
        assert sorted(states) == [70, 140, 210, 279, 280]
        for end, state in states.items():
            np.testing.assert_array_equal(state, toy_state(prompt[:end]))


def cached(loop: ServingLoop, prompt: list[int]) -> int:
    """Tokens of ``prompt`` that a request finds while others run."""
    id_ = loop.add(make_request(prompt, 1))
    while True:
        for output in loop.step():
            if output.request_id == id_ and output.piece and output.piece.generation:
                return output.piece.generation.cached_tokens


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("interval", [1, 3, 256, None])
def test_the_next_turn_computes_at_most_an_interval_again(interval: int | None, ends: bool) -> None:
    """While the answer is generated; once it has ended or was cancelled, new tokens only."""
    cache = PrefixCacheSettings(decode_interval=interval, cached_states=30)
    loop, engine = toy_loop(prefix_cache=cache)
    prompt = line(1, 20)
    said = [*prompt, *toy_greedy(engine.config, prompt, 40)]
    first = loop.add(make_request(prompt, 40))
    for _ in range(18):
        loop.step()
    memory = loop.scheduler.sequences[0].memory
    running = memory.length
    assert running > 30
    assert cached(loop, [*said[: running + 1], *line(2, 5)]) >= max(19, running - (interval or 99))
    if ends:
        run_all(loop)
        length = len(said) - 1
    else:
        length = memory.length
        loop.cancel(first)
    assert cached(loop, [*said[:length], *line(3, 5)]) == length
